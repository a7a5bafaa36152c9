"""`memcurse` and `python -m memcurse_cli`: run the app and turn every ending into an exit code.

0 done and passed, 1 a check found a violation, 2 bad usage or an input that cannot be read.
"""

from __future__ import annotations

import os
import sys

BAD_INPUT = 2
INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line on some arguments and return its exit code."""
    from typer import Abort, Exit
    from typer.main import get_command

    from memcurse_cli.app import app
    from memcurse_cli.errors import MemcurseError

    try:
        result = get_command(app).main(arguments, prog_name="memcurse", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except MemcurseError as error:
        return _fail(str(error))
    except Exit as ending:
        return ending.exit_code
    except (KeyboardInterrupt, Abort):
        print("memcurse: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain again while it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is not None:  # click's usage errors
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "memcurse"
            return _fail(f"{usage().rstrip('.')}; see '{command} --help'")
        if "MEMCURSE_DEBUG" in os.environ:
            raise
        return _fail(
            f"internal error, {type(error).__name__}: {error}; please report it with the "
            "traceback that MEMCURSE_DEBUG=1 shows"
        )


def _fail(message: str) -> int:
    line = " ".join(message.split())
    print(f"memcurse: error: {line}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    main()
