"""The terminal of the commands: results go to standard output; progress, log lines and notices to standard error."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, ProgressColumn

__all__ = ["be_quiet", "be_verbose", "log_lines", "notes", "print_error", "progress_bar"]

notes = Console(stderr=True)
"""The place of progress bars and notices, so that standard output holds the results alone."""

_logger = logging.getLogger("omnireuse")
_STYLES = {logging.INFO: "dim", logging.WARNING: "yellow", logging.ERROR: "bold red"}


class _LogLines(logging.Handler):
    """Prints each record of the logger as one line, above a progress bar if one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        console = Console(stderr=True) if notes.quiet else notes
        style = _STYLES.get(record.levelno, "dim")
        words = f"[{style}]{record.levelname.lower()}:[/] {escape(record.getMessage())}"
        console.print(words, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def log_lines() -> Iterator[None]:
    """Show the library's log, warnings and errors unless told otherwise; undone at the end."""
    handler, level = _LogLines(), _logger.level
    _logger.addHandler(handler)
    try:
        yield
    finally:
        _logger.removeHandler(handler)
        _logger.setLevel(level)
        notes.quiet = False


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A progress bar on standard error that is gone at the end; nothing if standard error is no terminal."""
    return Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)


def be_quiet() -> None:
    """Show errors alone: no progress, no notices, no warnings."""
    notes.quiet = True
    _logger.setLevel(logging.ERROR)


def be_verbose() -> None:
    """Show the library's information, too."""
    _logger.setLevel(logging.INFO)


def print_error(message: str) -> None:
    """Print an error on standard error, as one line."""
    Console(stderr=True).print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
