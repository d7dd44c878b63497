\set aid random(1, 1000)
\startpipeline
select balance from accounts where id = :aid;
update accounts set balance = balance + 1 where id = :aid;
select count(*) from accounts where id between :aid and :aid + 10;
\endpipeline
