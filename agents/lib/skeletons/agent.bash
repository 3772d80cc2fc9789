#!/usr/bin/env bash
# drover-agent-NAME: counts the lines of a file. An agent of drover(8); drover-agent(7) is its author's manual.
#
# The functions drover_* are in drover_agent.sh, beside this file. Standard input and output belong to them: give each
# command that you start others, as below, or it eats the next items.
set -u
export LC_ALL=C # bytes are characters: names of files need not be UTF-8
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
. "$here/drover_agent.sh"

# Do one item. Replace this by your own work; never give its data to eval.
work() {
    local path lines status
    drover_value path # a row of a query has columns; one parameter is the whole line
    status=$?
    case $status in
        0) path=$DROVER_VALUE ;;
        1) drover_fail_final "the item has no column path, or it is NULL" && return ;; # never tried again
        *) path=$DROVER_LINE ;;
    esac
    if [[ -f $path ]] && lines=$(wc -l <"$path"); then
        drover_result "{\"lines\":$((lines))}"
    else
        drover_fail "cannot read $path"
    fi
}

drover_ready # OK: ready
while drover_next; do
    work
    drover_done # OK: this item is finished, and here is room for the next
done
