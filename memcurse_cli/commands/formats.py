"""`memcurse formats`: the checkpoint formats that are read, and how each is recognised."""

from __future__ import annotations

from memcurse_cli.commands.options import JsonOption, OutputOption, emit, emit_json


def formats(as_json: JsonOption = False, output: OutputOption = None) -> None:
    """List the checkpoint formats that are read, and by what each is recognised.

    A file's content decides, never its extension. A directory is read through
    a conventional name such as model.safetensors, its index of shards, or the
    only checkpoint in it.

    Example: memcurse formats --json
    """
    from memcurse_cli.checkpoints.registry import FORMATS

    if as_json:
        from memcurse_cli.schema.listings import FormatDocument, FormatsDocument

        listed = (FormatDocument(one.name, one.extensions, one.recognised_by) for one in FORMATS)
        emit_json(FormatsDocument(tuple(listed)), output)
        return
    from memcurse_cli.reports.terminal.listing import Listing, to_text

    rows = [(format.name, " ".join(format.extensions), format.recognised_by) for format in FORMATS]
    emit(to_text(Listing(("format", "extensions", "recognised by"), rows), file=output), output)
