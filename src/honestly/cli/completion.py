"""`honestly completion`: a script for the shell, which then completes commands, options, rules, attacks and more.

argcomplete was tried instead (3.7, November 2026). It completes `key=value` words up to the first option, but none
after it (`simulate rounds=3 --quiet ru`), because argparse gives a list of words to one place only; and the core may
not depend on it.
"""

from __future__ import annotations

import argparse
from typing import Any

BASH = r"""# honestly: completion for bash
_honestly() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$' \t\n'
    local -a words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    words=("${words[@]:1}")
    local current=${words[${#words[@]}-1]} broken
    IFS=$'\n'
    COMPREPLY=($("$1" completion --words "${words[@]/#/.}" 2>/dev/null))
    # bash breaks words at = and :, and wants only what follows the last of them
    for broken in = :; do
        if [[ $COMP_WORDBREAKS == *$broken* && $current == *$broken* ]]; then
            COMPREPLY=("${COMPREPLY[@]#"${current%"$broken"*}$broken"}")
        fi
    done
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -o bashdefault -o default -F _honestly honestly
"""

ZSH = r"""#compdef honestly
# honestly: completion for zsh
_honestly() {
    local -a found
    found=(${(f)"$(${words[1]} completion --words "${(@)words[2,CURRENT-1]/#/.}" ".$PREFIX" 2>/dev/null)"})
    if (( ! $#found )); then
        _files
        return
    fi
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
}
if [[ $funcstack[1] == _honestly ]]; then _honestly "$@"; else compdef _honestly honestly; fi
"""

FISH = r"""# honestly: completion for fish
function __honestly_words
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l found ($before[1] completion --words .$before[2..-1] ".$current" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c honestly -f -a '(__honestly_words)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

EPILOG = """\
to have it in every new shell
  bash   echo 'source <(honestly completion bash)' >> ~/.bashrc
  zsh    echo 'source <(honestly completion zsh)' >> ~/.zshrc      (after compinit)
  fish   honestly completion fish > ~/.config/fish/completions/honestly.fish
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes this command in bash, zsh or fish",
        description="Print a script for the shell. It completes commands, options, and the names of rules, attacks, "
        "data sets and settings.",
        epilog=EPILOG,
    )
    parser.add_argument("shell", nargs="?", choices=list(SCRIPTS), help="bash, zsh or fish")
    # used by the scripts: completes the last of these words; each has a dot in front so that none looks like an option
    parser.add_argument("--words", nargs="*", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script, or the completions that a script asks for."""
    if args.words is None:
        if args.shell is None:
            raise ValueError(f"name the shell: honestly completion {' | '.join(SCRIPTS)}")
        print(SCRIPTS[args.shell], end="")
        return 0
    from honestly.cli import parser
    from honestly.cli.candidates import candidates

    for word in candidates(parser(), [word[1:] for word in args.words]):
        print(word)
    return 0
