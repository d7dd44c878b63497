-- What psql can do with a session, run directly and through pghandoff: the outputs must be the same.
\set ON_ERROR_STOP off
\set VERBOSITY verbose
\set SHOW_CONTEXT always
set client_min_messages = notice;
create temp table t (id int primary key, body text, bytes bytea);
\copy t from program 'for i in $(seq 1 1000); do printf "%d\tline %d\t\\\\\\\\x00ff\n" $i $i; done'
\copy (select * from t order by id limit 5) to stdout
\copy (select md5(string_agg(id || body, ',' order by id)) from t) to stdout csv header
copy t from stdin;
1	already there	\\x00
\.
\copy nowhere from '/dev/null'
\lo_import /etc/hostname 'a large object'
select lo_get(lo_from_bytea(424242, '\x0001020304'), 1, 3);
\lo_export 424242 /dev/null
select count(*) from pg_largeobject_metadata where oid = 424242;
select lo_unlink(424242);
begin;
declare held cursor with hold for select id from t order by id;
declare scrolled scroll cursor for select id from t order by id;
fetch 2 from held;
fetch last from scrolled;
fetch backward 2 from scrolled;
commit;
fetch 2 from held;
fetch 1 from scrolled;
select pg_advisory_lock(4711), pg_try_advisory_lock_shared(4712);
select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid();
listen news;
notify news, 'one';
select pg_notify('news', 'two');
select 1/0 as error;
do $$ begin raise notice 'noted'; raise warning 'warned'; end $$;
prepare p (int) as select $1 + 1;
execute p(41);
begin isolation level serializable; savepoint a; insert into t values (1); rollback to a; select count(*) from t; commit;
set search_path = pg_catalog; set work_mem = '7MB'; show work_mem;
select 1 \; select 2 \; select 3
select * from generate_series(1, 3) \gx
select 'x' as a, 7 as b \gset
\echo :a :b
\timing off
select id, body from t where id <= 3 \crosstabview
select id from t order by id limit 2 \gdesc
\errverbose
