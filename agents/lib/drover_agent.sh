# drover_agent.sh: Drover's line protocol for agents in a POSIX shell; see drover-agent(7).
#
#     . drover_agent.sh
#     drover_ready
#     while drover_next; do
#         path=$(drover_get path) || { drover_fail "no path"; drover_done; continue; }
#         drover_log "working on $path"
#         some-command -- "$path" </dev/null >&2 || drover_fail "some-command: status $?"
#         drover_done
#     done
#
# Standard input and output belong to the protocol: give every command you run other ones, as above.
# Data is never evaluated. Names that begin with drover_, _drover_ and DROVER_ are ours.

_drover_nl='
'
_drover_cr=$(printf '\r')
_drover_tab=$(printf '\t')

# Say that the agent is ready (once), or that the item is finished (after each).
drover_ready() { printf 'OK\n'; }
drover_done() { printf 'OK\n'; }

# Read one item into DROVER_LINE; 1 at end of input. A line that the end of input cut is no item.
drover_next() { IFS= read -r DROVER_LINE; }

# Print the value of column $1, unescaped; 1 if the item has none (NULL), 2 if the line is not a record.
# Command substitution drops newlines at the end of a value; where they matter, use drover_value.
drover_get() {
    drover_value "$1" || return
    printf '%s' "$DROVER_VALUE"
}

# Put the value of column $1 into DROVER_VALUE; 1 if the item has none, 2 if the line is not a record.
drover_value() {
    _drover_rest=$DROVER_LINE
    while [ -n "$_drover_rest" ]; do
        case $_drover_rest in *'="'*) ;; *) DROVER_VALUE= && return 2 ;; esac
        _drover_name=${_drover_rest%%=\"*}
        _drover_rest=${_drover_rest#*=\"}
        _drover_take || { DROVER_VALUE= && return 2; }
        [ "$_drover_name" != "$1" ] || return 0
        _drover_rest=${_drover_rest# }
    done
    DROVER_VALUE=
    return 1
}

# The protocol's other lines. Newlines in a text become blanks: a line is all that can be said. A long text is cut, with a
# mark, where the line could have more bytes than the scheduler takes; but RESULT is not, as half of it is not JSON.
drover_log() { _drover_say LOG "$*"; }
drover_warning() { _drover_say WARNING "$*"; }
drover_error() { _drover_say ERROR "$*"; }
drover_fatal() { _drover_say FATAL "$*"; }
drover_echo() { _drover_say ECHO "$*"; }
drover_event() { _drover_say EVENT "$*"; }
drover_fail() { _drover_say FAIL "$*"; }
drover_fail_final() { _drover_say 'FAIL!' "$*"; } # the item is not tried again
drover_blocked() { _drover_say BLOCKED "$*"; }
drover_result() { _drover_say RESULT "$*"; }
drover_success() { printf 'Success\n'; }
drover_heartbeat() { printf 'Heartbeat\n'; }
drover_items_processed() { _drover_say ItemsProcessed "$1"; }

# Run the registered statement $1; behind it stand the names and values of its parameters, as in
#
#     drover_db save id "$id" size "$size" --null note || drover_fail "not saved: $DROVER_ERROR"
#
# Its rows are in DROVER_ROWS, a line each, as items have them; 1 if it failed, with the reason in DROVER_ERROR. Every
# value goes as text, which Postgres turns into the type of the parameter. If standard input closes, the agent exits.
drover_db() {
    _drover_statement=$1 _drover_json= && shift
    while [ $# -gt 1 ]; do
        case $1 in
            --null) _drover_pair "$2" && _drover_json=$_drover_json:null ;;
            *) _drover_pair "$1" && _drover_quote "$2" && _drover_json=$_drover_json:$_drover_quoted ;;
        esac
        shift 2
    done
    [ $# -eq 0 ] || { DROVER_ERROR="drover_db: $1 has no value" && return 1; }
    _drover_line="DB: $_drover_statement {$_drover_json}"
    if [ "${#_drover_line}" -gt 250000 ]; then # characters, of which each may have four bytes
        [ "$(printf '%s' "$_drover_line" | wc -c)" -lt 1048576 ] ||
            { DROVER_ERROR="the line would have 1 MiB or more, which is the limit" && return 1; }
    fi
    printf '%s\n' "$_drover_line"
    _drover_answer
}

# Put the value of column $1 of the first row in DROVER_ROWS into DROVER_VALUE; otherwise as drover_value.
drover_row_value() {
    _drover_item=$DROVER_LINE
    DROVER_LINE=${DROVER_ROWS%%"$_drover_nl"*}
    drover_value "$1"
    set -- $?
    DROVER_LINE=$_drover_item
    return "$1"
}

_drover_answer() {
    DROVER_ROWS= DROVER_ERROR=
    while :; do
        IFS= read -r _drover_row || exit 0
        case $_drover_row in
            OK) break ;;
            ERROR | 'ERROR ') DROVER_ERROR="no reason was given" ;;
            ERROR*) DROVER_ERROR=${_drover_row#ERROR } ;;
            *) DROVER_ROWS=$DROVER_ROWS${DROVER_ROWS:+$_drover_nl}$_drover_row ;;
        esac
    done
    [ -z "$DROVER_ERROR" ]
}

# Begin a pair of _drover_json with the name $1.
_drover_pair() {
    _drover_quote "$1"
    _drover_json=$_drover_json${_drover_json:+,}$_drover_quoted
}

# Put $1 as a string of JSON into _drover_quoted. Some shells take a minute for 1 MiB, so awk(1) does long values.
_drover_quote() {
    _drover_rest=$1 _drover_quoted='"'
    case $1 in
        *[\"\\[:cntrl:]]*) ;;
        *) _drover_quoted=\"$1\" && return ;;
    esac
    if [ "${#1}" -gt 2000 ]; then
        _drover_quoted=$(printf '%s.' "$1" | LC_ALL=C awk "$_drover_awk")
        _drover_quoted=\"${_drover_quoted%.}\" && return
    fi
    while :; do
        _drover_head=${_drover_rest%%[\"\\[:cntrl:]]*}
        _drover_quoted=$_drover_quoted$_drover_head
        _drover_rest=${_drover_rest#"$_drover_head"}
        [ -n "$_drover_rest" ] || break
        _drover_head=${_drover_rest%"${_drover_rest#?}"}
        _drover_rest=${_drover_rest#?}
        case $_drover_head in
            [\"\\]) _drover_quoted=$_drover_quoted\\$_drover_head ;;
            *) _drover_quoted=$_drover_quoted$(printf '\\u%04x' "'$_drover_head") ;;
        esac
    done
    _drover_quoted=$_drover_quoted'"'
}

_drover_awk='
function put(c, code, n, i, part, out) {
    n = split(text, part, c)
    out = part[1]
    for (i = 2; i <= n; i++)
        out = out code part[i]
    text = out
}
{
    text = $0
    put("\\\\", "\\\\")
    put("\"", "\\\"")
    for (k = 1; k < 32; k++)
        if (index(text, sprintf("%c", k)))
            put(sprintf("%c", k), sprintf("\\u%04x", k))
    printf "%s%s", (NR > 1 ? "\\u000a" : ""), text
}'

_drover_say() {
    _drover_text=$2
    case $_drover_text in
        *"$_drover_nl"* | *"$_drover_cr"*) _drover_text=$(printf '%s' "$2" | tr '\n\r' '  ') ;;
    esac
    if [ "${#_drover_text}" -gt 250000 ] && [ "$1" != RESULT ]; then
        _drover_text=$(printf '%.250000s ... (cut)' "$_drover_text")
    fi
    printf '%s %s\n' "$1" "$_drover_text"
}

# Move a value, unescaped, and its closing quote from _drover_rest to DROVER_VALUE; 1 if there is no such value.
_drover_take() {
    DROVER_VALUE=
    while :; do
        _drover_head=${_drover_rest%%[\"\\]*}
        DROVER_VALUE=$DROVER_VALUE$_drover_head
        _drover_rest=${_drover_rest#"$_drover_head"}
        case $_drover_rest in
            \"*) _drover_rest=${_drover_rest#?}; return 0 ;;
            \\?*) _drover_rest=${_drover_rest#?}; _drover_unescape || return 1 ;;
            *) return 1 ;;
        esac
    done
}

# Move one escape, its backslash gone already, to DROVER_VALUE.
_drover_unescape() {
    case $_drover_rest in
        n*) _drover_head=$_drover_nl ;;
        r*) _drover_head=$_drover_cr ;;
        t*) _drover_head=$_drover_tab ;;
        x[0-9A-Fa-f][0-9A-Fa-f]*) _drover_unhex || return 1 ;;
        [\"\\\'\$\`]*) _drover_head=${_drover_rest%"${_drover_rest#?}"} ;;
        *) return 1 ;;
    esac
    DROVER_VALUE=$DROVER_VALUE$_drover_head
    _drover_rest=${_drover_rest#?}
}

# Turn xHH into its byte and leave one character to drop. The point keeps a newline from being stripped.
_drover_unhex() {
    _drover_rest=${_drover_rest#x}
    _drover_head=${_drover_rest%"${_drover_rest#??}"}
    _drover_rest=${_drover_rest#?}
    _drover_head=$(printf "\\$(printf '%03o' "0x$_drover_head").")
    _drover_head=${_drover_head%.}
}
