"""TLS towards backends: always verified, and by nothing but the operator's settings."""

import ssl
from pathlib import Path

import certifi


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Whose certificates we believe: those of the authorities in `ca_file`, without one those that certifi lists.

    Built by hand: `ssl.create_default_context` lets the environment choose others (SSL_CERT_FILE, SSL_CERT_DIR) and write
    the keys of every connection to a file (SSLKEYLOGFILE). Raises OSError or ssl.SSLError for a file that is none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cafile=ca_file if ca_file is not None else certifi.where())
    return context
