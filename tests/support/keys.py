"""Keys files as operators write them: the keys of tenants by name, in digests."""

import hashlib
from pathlib import Path


def keys_file(folder: Path, more: str = "", **tenants: bytes) -> Path:
    """Write (or replace) the keys file in a folder: one key for each tenant. more: tables that stand before them."""
    path = folder / "keys.toml"
    parts = [more]
    for tenant, key in tenants.items():
        parts.append(f'[tenants.{tenant}]\nkeys = ["{hashlib.sha256(key).hexdigest()}"]')
    path.write_text("\n".join(parts) + "\n")
    return path
