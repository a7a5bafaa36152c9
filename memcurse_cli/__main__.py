"""`memcurse` and `python -m memcurse_cli`: run the app and turn every ending into an exit code.

0 done and passed, 1 a check found a violation, 2 bad usage or an input that cannot be read. Python
itself would end with 1 on an uncaught exception, which must never pass for a violation.
"""

from __future__ import annotations

import errno
import os
import sys

BAD_INPUT = 2
INTERRUPTED = 130
OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG)


def main() -> None:
    """Run the command line and exit."""
    if sys.stderr is None:  # closed by whoever started us
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process runs
    if sys.stdout is None:
        sys.exit(_fail("standard output is closed; redirect it to a file or to /dev/null"))
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        # A library's threads may still be at work (XLA's are), and tearing the interpreter down
        # under them can crash it. Everything of ours has unwound by now.
        sys.stderr.flush()
        os._exit(code)
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
    except (KeyboardInterrupt, Abort):
        return _interrupted()
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as ending:
        # Typer's answer to a broken pipe is 1, which means a violation here.
        if isinstance(ending.__context__, BrokenPipeError):
            return _reader_left()
        raise
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS or error.filename is not None:
            return _internal(error, arguments)
        return _fail(f"standard output: cannot be written: {error.strerror}")
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
    from memcurse_cli.commands.common import discard_output

    discard_output()
    return 0


def _internal(error: Exception, arguments: list[str]) -> int:
    _show_traceback(arguments)
    return _fail(
        f"internal error, {type(error).__name__}: {error}; please report it with the "
        "traceback that --debug shows"
    )


def _show_traceback(arguments: list[str]) -> None:
    """The traceback of the error at hand, where --debug or MEMCURSE_DEBUG asks for it."""
    if "--debug" in arguments or os.environ.get("MEMCURSE_DEBUG", "0") != "0":
        import traceback

        from memcurse_cli.checkpoints.names import shown_text
        from memcurse_cli.reports.console import say

        say(shown_text(traceback.format_exc().rstrip("\n")))


def _interrupted() -> int:
    print("memcurse: interrupted", file=sys.stderr)
    return INTERRUPTED


def _fail(message: str) -> int:
    from memcurse_cli.checkpoints.names import shown_text
    from memcurse_cli.reports.console import say

    say(f"memcurse: error: {shown_text(' '.join(message.split()))}")
    return BAD_INPUT


if __name__ == "__main__":
    main()
