"""`--install-completion SHELL` and `--show-completion SHELL`; without a name, typer finds the running shell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from postroad.cli.output import write
from postroad.errors import InvalidInput
from postroad.settings import nearest

_SHELLS: Final = ("bash", "zsh", "fish")
_INSTALL: Final = "--install-completion"
_SHOW: Final = "--show-completion"
_VARIABLE: Final = "_POSTROAD_COMPLETE"


def completed_for_shell(args: Sequence[str]) -> bool:
    """Carry out an option about completion that names its shell, and return whether there was one."""
    option, _, shell = " ".join(args[:2]).replace("=", " ").partition(" ")
    if option not in (_INSTALL, _SHOW) or not shell:
        return False
    if shell not in _SHELLS:
        raise InvalidInput(
            f'"{shell}" is not a shell that Postroad completes for',
            field="shell",
            nearest=nearest(shell, _SHELLS),
            remedy=f"Name one of {', '.join(_SHELLS)}.",
        )
    from typer._completion_shared import get_completion_script, install

    named = {"prog_name": "postroad", "complete_var": _VARIABLE, "shell": shell}
    if option == _SHOW:
        write(get_completion_script(**named))
    else:
        _, path = install(**named)
        write(f"completion for {shell} is in {path}; it takes effect in the next shell")
    return True
