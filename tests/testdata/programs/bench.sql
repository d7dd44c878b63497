\set aid random(1, 1000)
\set delta random(-500, 500)
begin;
update accounts set balance = balance + :delta where id = :aid;
select balance as now from accounts where id = :aid \gset
insert into history (aid, delta, balance) values (:aid, :delta, :now);
savepoint s;
delete from history where id < 0;
rollback to s;
end;
