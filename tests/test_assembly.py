"""What the composition root makes of the settings, as far as it can be seen without starting anything."""

import ssl
from pathlib import Path

import certifi
import pytest

from gateway.assembly import trust


def names(context: ssl.SSLContext) -> set[object]:
    return {authority["subject"] for authority in context.get_ca_certs()}


@pytest.fixture
def one_authority(tmp_path: Path) -> Path:
    """A file with the first certificate of certifi's list."""
    end = "-----END CERTIFICATE-----\n"
    path = tmp_path / "ca.pem"
    path.write_text(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end, encoding="utf-8")
    return path


def test_certificates_are_checked_against_certifi_s_list() -> None:
    context = trust(None)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(names(context)) > 50


def test_the_operators_authorities_take_the_place_of_all_others(one_authority: Path) -> None:
    assert len(names(trust(one_authority))) == 1


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_u_4_the_environment_does_not_choose_whom_we_trust(
    variable: str, one_authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(one_authority))
    monkeypatch.setenv("SSL_CERT_DIR", str(one_authority.parent))
    assert len(names(trust(None))) > 50


def test_u_4_the_environment_does_not_make_us_write_the_keys_of_our_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert trust(None).keylog_filename is None
    assert not (tmp_path / "keys").exists()
