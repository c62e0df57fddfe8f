"""`kvgate serve`: put the gateway before the backends and keep it there until a signal."""

import logging

from gateway.cli.flags import AdminPortFlag, BackendsFlag, PortFlag, exit_with, given_flags, settings_or_exit


def serve(backends: BackendsFlag = None, port: PortFlag = None, admin_port: AdminPortFlag = None) -> None:
    """Put the gateway before one or more inference servers. Everything else is set by the environment: kvgate settings."""
    settings = settings_or_exit(given_flags(backends=backends, port=port, admin_port=admin_port))
    if not settings.backends:
        exit_with(
            "no backend is set: name your inference server with --backends or KVGATE_BACKENDS, for example "
            "--backends http://127.0.0.1:8000 (without one of your own, try: kvgate demo)"
        )
    from gateway import logs
    from gateway.assembly import serve as run

    logs.configure(settings.log_level, settings.log_format)
    for remark in settings.remarks():
        logging.getLogger("kvgate").warning(remark)
    raise SystemExit(run(settings))
