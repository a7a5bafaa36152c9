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
    own stream has no buffer, and loses what one call does not write.

    Args:
        stream: as Python has opened it.
        vital: whether a write that fails is an error of the command.
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
        """Write a text.

        Raises:
            BrokenPipeError: the reader of standard output has left.
            UsageError: standard output cannot be written.
        """
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Write what is held back; the errors of `write`."""
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if self._vital and isinstance(error, BrokenPipeError):
            raise error
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
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
    from typer import Abort, Exit
    from typer.main import get_command

    from memcurse_cli.app import app
    from memcurse_cli.errors import MemcurseError

    try:
        result = get_command(app).main(arguments, prog_name="memcurse", standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
        # Outside its standalone mode Typer returns the code of an interrupt without a word.
        return _interrupted() if code == INTERRUPTED else code
    except MemcurseError as error:
        _show_traceback(arguments)
        return _fail(str(error))
    except Exit as ending:
        return ending.exit_code
    except KeyboardInterrupt:
        return _interrupted()
    except Abort as ending:  # Typer's answer to an EOFError, since it would be that of a prompt
        return _internal(ending.__cause__ or ending, arguments)
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as ending:
        # Typer's answer to a broken pipe is 1, which means a violation here.
        if isinstance(ending.__context__, BrokenPipeError):
            return _reader_left()
        raise
    except OSError as error:
        named = isinstance(error.filename, str)
        if error.errno not in DISK_ERRORS and not named:
            return _internal(error, arguments)
        _show_traceback(arguments)
        where = error.filename if named else "a file"
        return _fail(f"{where}: {error.strerror}; is the path right, and room on its disk?")
    except MemoryError as error:
        _show_traceback(arguments)
        return _fail(f"this needs more memory than there is{f' ({error})' if str(error) else ''}")
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is not None:  # click's usage errors
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "memcurse"
            if not usage():  # no arguments at all: the help has been shown
                return BAD_INPUT
            from memcurse_cli.commands.defaults import origin_of

            origin = origin_of(error)
            return _fail(
                f"{origin}: " * bool(origin) + f"{usage().rstrip('.')}; see '{command} --help'"
            )
        return _internal(error, arguments)


def _reader_left() -> int:
    from memcurse_cli.commands.defaults import discard_output

    discard_output()
    return 0


def _internal(error: BaseException, arguments: list[str]) -> int:
    _show_traceback(arguments)
    return _fail(
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
