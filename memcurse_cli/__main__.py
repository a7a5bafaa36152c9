"""`memcurse` and `python -m memcurse_cli`: run the app and turn every ending into an exit code.

0 done and passed, 1 a check found a violation, 2 bad usage or an input that cannot be read. Python
itself would end with 1 on an uncaught exception, which must never pass for a violation.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Any

BAD_INPUT = 2
INTERRUPTED = 130
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Stream(io.TextIOWrapper):
    """A standard stream that writes all or fails, once: what is left then goes nowhere.

    Else Python, which flushes once more at its end, would end with 120. Under PYTHONUNBUFFERED its
    own ``stream`` has no buffer, and loses what one call does not write. A write that fails is an
    error of the command where it is ``vital``.
    """

    def __init__(self, stream: Any, *, vital: bool) -> None:
        self._vital = vital
        buffered = isinstance(stream.buffer, io.BufferedIOBase)
        super().__init__(
            stream.buffer if buffered else io.BufferedWriter(stream.buffer),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering or not buffered,
        )
        if hasattr(os, "set_blocking"):  # whoever started us may have made it non-blocking
            os.set_blocking(self.fileno(), True)

    def write(self, text: str, /) -> int:
        """Write a text; raises as `_give_up` does."""
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Write what is held back; raises as `_give_up` does."""
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Raise, where it matters, `BrokenPipeError` if the reader has left, else `UsageError`."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        if self._vital and isinstance(error, BrokenPipeError):
            raise error
        if self._vital:
            from memcurse_cli.errors import UsageError

            reason = error.strerror or error
            raise UsageError(f"cannot be written: {reason}", where="standard output") from error


def main() -> None:
    """Run the command line and exit."""
    try:
        if sys.stderr is None:  # closed by whoever started us
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process runs
        else:
            sys.stderr = _Stream(sys.stderr, vital=False)
        if sys.stdout is None:
            sys.exit(_fail("standard output is closed; redirect it to a file or to /dev/null"))
        sys.stdout = _Stream(sys.stdout, vital=True)
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while what `run` catches it with is imported
        code = _interrupted()
    if code == INTERRUPTED:
        # A library's threads may still be at work (XLA's are), and tearing the interpreter down
        # under them can crash it. Everything of ours has unwound by now.
        sys.stderr.flush()
        os._exit(code)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is done: no traceback from here on
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line on some arguments and return its exit code."""
    from typer import Exit
    from typer.main import get_command

    from memcurse_cli.app import app

    try:
        result = get_command(app).main(arguments, prog_name="memcurse", standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
        # Outside its standalone mode Typer returns the code of an interrupt without a word.
        return _interrupted() if code == INTERRUPTED else code
    except Exit as ending:
        return ending.exit_code
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        return 0
    except SystemExit as ending:
        # Typer's answer to a broken pipe is 1, which means a violation here.
        if isinstance(ending.__context__, BrokenPipeError):
            return 0
        raise
    except Exception as error:
        if hasattr(error, "format_message"):
            return _misused(error)
        _show_traceback(arguments)
        return _fail(_message(error))


def _misused(error: Any) -> int:
    """End with one of click's usage errors, and what set the option that it is about."""
    from memcurse_cli.commands.defaults import option_name, origin

    said, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
    if not said:  # no arguments at all: the help has been shown
        return BAD_INPUT
    command = context.command_path if context is not None else "memcurse"
    option = getattr(error, "param", None)
    place = origin(context, option_name(option)) if context and option else ""
    return _fail(f"{place}: " * bool(place) + f"{said}; see '{command} --help'")


def _message(error: BaseException) -> str:
    """What is told of an error."""
    from typer import Abort

    from memcurse_cli.errors import MemcurseError

    if isinstance(error, Abort):  # Typer's answer to an EOFError, since it would be a prompt's
        error = error.__cause__ or error
    if isinstance(error, MemcurseError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"this needs more memory than there is{f' ({error})' if str(error) else ''}"
    named = isinstance(error, OSError) and isinstance(error.filename, str)
    if isinstance(error, OSError) and (named or error.errno in DISK_ERRORS):
        where = error.filename if named else "a file"
        return f"{where}: {error.strerror}; is the path right, and room on its disk?"
    return (
        f"internal error, {type(error).__name__}: {error}; please report it with the "
        "traceback that --debug shows"
    )


def _show_traceback(arguments: list[str]) -> None:
    """The traceback of the error at hand, where --debug or MEMCURSE_DEBUG asks for it."""
    if "--debug" in arguments or os.environ.get("MEMCURSE_DEBUG", "0") != "0":
        import traceback

        from memcurse_cli.checkpoints.untrusted.names import shown_text
        from memcurse_cli.reports.console import say

        say(shown_text(traceback.format_exc().rstrip("\n")))


def _interrupted() -> int:
    print("memcurse: interrupted", file=sys.stderr)
    return INTERRUPTED


def _fail(message: str) -> int:
    error = sys.exception()
    while error is not None:
        if isinstance(error, KeyboardInterrupt):  # which a library made another error of
            return _interrupted()
        error = error.__cause__ or error.__context__
    from memcurse_cli.checkpoints.untrusted.names import shown_text
    from memcurse_cli.reports.console import say

    say(f"memcurse: error: {shown_text(' '.join(message.split()))}")
    return BAD_INPUT


if __name__ == "__main__":
    main()
