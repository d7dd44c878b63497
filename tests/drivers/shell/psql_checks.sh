#!/usr/bin/env bash
# psql against pghandoff (see tests/drivers_test.go).
set -uo pipefail

TEXT="Käse 'n' \\ ☕"
LARGE="select repeat('x', 1000) from generate_series(1, 10000)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# sql runs psql with further arguments: no start-up file, plain output, SQLSTATE in errors.
sql() { psql -XAtq -v VERBOSITY=verbose "host=$RUN_DIR dbname=$ROUTE user=app" "$@"; }

# expect NAME GOT WANT fails with a sentence unless they are equal.
expect() {
  [ "$2" == "$3" ] && return
  echo "$1: got ${2:0:200}, want ${3:0:200}"
  return 1
}

# until_true runs a command until it succeeds, for 20 s at most.
until_true() {
  local end=$((SECONDS + 20))
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.02
  done
}

# open starts a psql that reads what is written to descriptor 8 and writes to the file out.
open() {
  rm -f "$work/in" "$work/out"
  mkfifo "$work/in"
  sql -a <"$work/in" >"$work/out" 2>&1 &
  exec 8>"$work/in"
}

connect() {
  expect user "$(psql "host=$RUN_DIR dbname=$ROUTE user=app" -XAtc 'select current_user')" app
}

settings() {
  local out
  out=$(PGAPPNAME=checks PGTZ=Asia/Tokyo PGOPTIONS='-c work_mem=5MB' sql -c 'show application_name' -c 'show TimeZone' -c 'show work_mem')
  expect settings "$out" $'checks\nAsia/Tokyo\n5MB'
}

parameters() {
  local out
  out=$(sql -v number=42 -v text="$TEXT" <<<"select :number + 1, :'text';")
  expect variables "$out" "43|$TEXT" && echo "its variables are sent as text of the query (it binds from version 16 on, by \\bind)"
}

prepared() {
  local out
  out=$({ echo 'prepare plus_one (int) as select $1 + 1;' && printf 'execute plus_one (%d);\n' {0..99}; } | sql)
  expect sums "$out" "$(seq 1 100)"
}

copy() {
  local i
  for i in {0..999}; do printf '%d\tline %d\n' "$i" "$i"; done >"$work/lines"
  sql -c 'create temp table copied (a int, b text)' -c "\\copy copied from '$work/lines'" -c "\\copy copied to '$work/copied'" || return
  cmp "$work/lines" "$work/copied"
}

notify() {
  local pid
  open
  echo 'listen checks_psql; \echo listening' >&8
  until_true grep -q '^listening' "$work/out" || return
  pid=$(sql -v text="$TEXT" <<<"select pg_backend_pid() from (select pg_notify('checks_psql', :'text')) n;")
  echo 'select 1;' >&8
  exec 8>&-
  wait $!
  expect notification "$(grep -cF "\"checks_psql\" with payload \"$TEXT\" received from server process with PID $pid" "$work/out")" 1
}

sleeps() {
  [ "$(sql -c "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'sleeper' and wait_event = 'PgSleep'")" == 1 ]
}

cancel() {
  local pid
  PGAPPNAME=sleeper psql -XAtq -v VERBOSITY=verbose "host=$RUN_DIR dbname=$ROUTE user=app" -c 'select pg_sleep(60)' \
    -c 'select 1 / 0' >"$work/out" 2>&1 & # not through a function: the signal is for psql itself
  pid=$!
  until_true sleeps || return
  kill -INT "$pid" # what Ctrl-C sends
  wait "$pid"
  # Having been interrupted, psql prints no more results, but errors.
  expect errors "$(grep -o 'ERROR:  .....' "$work/out")" $'ERROR:  57014\nERROR:  22012'
}

errors() {
  local out
  out=$(sql -v ON_ERROR_STOP=1 2>&1 <<<'create temp table once (a int constraint only_once unique); insert into once values (1); insert into once values (1);')
  expect 'exit code' $? 3 || return
  expect error "$(grep -o 'ERROR:  23505' <<<"$out")" 'ERROR:  23505' || return
  out=$(psql "host=$RUN_DIR dbname=nosuch user=app" -Xc 'select 1' 2>&1)
  expect 'exit code' $? 2 && expect message "$(grep -c nosuch <<<"$out")" 1
}

large() {
  local line
  line=$(printf '%01000d' 0)
  expect rows "$(sql -c "$LARGE" | uniq -c | tr -d ' ')" "10000${line//0/x}"
}

reconnect() {
  open
  echo "select 'before';" >&8
  until_true grep -q '^before' "$work/out" || return
  echo 'restart?' >&3
  read -r
  echo "select 'after';" >&8
  exec 8>&-
  wait $!
  expect 'exit code' $? 2 && expect anew "$(sql -c "select 'anew'")" anew
}

exec 3>&1
echo "version: $(psql --version | cut -d ' ' -f 3)"
for check in connect settings parameters prepared copy notify cancel errors large reconnect; do
  if said=$("$check" 2>&1 3>&3); then echo "$check: ok${said:+, $said}"; else echo "$check: failed," $said; fi
done
