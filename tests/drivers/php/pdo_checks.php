<?php
// PHP's PDO against pghandoff (see tests/drivers_test.go).
declare(strict_types=1);

$RUN_DIR = getenv("RUN_DIR");
$ROUTE = getenv("ROUTE");
const TEXT = "Käse 'n' \\ ☕";
const LARGE = "select repeat('x', 1000) from generate_series(1, 10000)";

class Lacks extends Exception {}

function connection(string $more = ""): PDO
{
    global $RUN_DIR, $ROUTE;
    return new PDO("pgsql:host=$RUN_DIR;dbname=$ROUTE$more", "app");
}

function expect(mixed $got, mixed $want): void
{
    if ($got !== $want) {
        throw new Exception("got " . substr(var_export($got, true), 0, 200) . ", want " . substr(var_export($want, true), 0, 200));
    }
}

function value(PDO $db, string $sql): mixed
{
    return $db->query($sql)->fetchColumn();
}

function refused(callable $action): PDOException
{
    try {
        $action();
    } catch (PDOException $e) {
        return $e;
    }
    throw new Exception("no PDOException");
}

function lines(): array
{
    return array_map(fn ($i) => "$i\tline $i\n", range(0, 999));
}

$checks = [
    "connect" => function () {
        global $RUN_DIR, $ROUTE;
        $db = new PDO("pgsql:host=$RUN_DIR;dbname=$ROUTE", "app");
        expect(value($db, "select current_user"), "app");
        expect($db->getAttribute(PDO::ATTR_SERVER_VERSION), value($db, "show server_version"));
    },
    "settings" => function () {
        $db = connection(";application_name=checks;options='-c work_mem=5MB -c TimeZone=Asia/Tokyo'");
        foreach (["application_name" => "checks", "work_mem" => "5MB", "TimeZone" => "Asia/Tokyo"] as $name => $want) {
            expect(value($db, "show $name"), $want);
        }
    },
    "parameters" => function () {
        $query = connection()->prepare("select ?::int, ?::text, ?::text, ?::timestamptz at time zone 'UTC', ?::bytea, ?::int[]");
        $bytes = "\x00\x01\xff";
        foreach ([42, TEXT, null, "2026-01-02 03:04:05+00", $bytes, "{1,2,3}"] as $i => $value) {
            $query->bindValue($i + 1, $value, match ($i) { 0 => PDO::PARAM_INT, 4 => PDO::PARAM_LOB, default => PDO::PARAM_STR });
        }
        $query->execute();
        $got = $query->fetch(PDO::FETCH_NUM);
        $got[4] = stream_get_contents($got[4]);
        expect($got, [42, TEXT, null, "2026-01-02 03:04:05", $bytes, "{1,2,3}"]);
    },
    "prepared" => function () {
        $db = connection();
        $query = $db->prepare("select ?::int + 1");
        foreach (range(0, 99) as $i) {
            $query->execute([$i]);
            expect($query->fetchColumn(), $i + 1);
        }
        expect(value($db, "select count(*) from pg_prepared_statements where statement like '%+ 1'"), 1);
    },
    "copy" => function () {
        $db = connection();
        $db->exec("create temp table copied (a int, b text)");
        $db->pgsqlCopyFromArray("copied", lines());
        expect($db->pgsqlCopyToArray("copied"), lines());
    },
    "notify" => function () {
        [$listener, $sender] = [connection(), connection()];
        $listener->exec("listen checks_php");
        $sender->prepare("select pg_notify('checks_php', ?)")->execute([TEXT]);
        $notice = $listener->pgsqlGetNotify(PDO::FETCH_ASSOC, 20000);
        expect([$notice["payload"], $notice["pid"]], [TEXT, $sender->pgsqlGetPid()]);
    },
    "cancel" => function () {
        throw new Lacks("PDO cannot cancel a query");
    },
    "errors" => function () {
        global $RUN_DIR;
        $db = connection();
        $db->exec("create temp table once (a int constraint only_once unique)");
        $db->exec("insert into once values (1)");
        $e = refused(fn () => $db->exec("insert into once values (1)"));
        expect([$e->errorInfo[0], str_contains($e->getMessage(), "only_once")], ["23505", true]);
        $e = refused(fn () => new PDO("pgsql:host=$RUN_DIR;dbname=nosuch", "app"));
        expect(str_contains($e->getMessage(), "nosuch"), true);
    },
    "large" => function () {
        $rows = connection()->query(LARGE)->fetchAll(PDO::FETCH_COLUMN);
        expect([count($rows), array_unique($rows)], [10000, [str_repeat("x", 1000)]]);
    },
    "reconnect" => function () {
        $db = connection();
        expect(value($db, "select 1"), 1);
        echo "restart?\n";
        fgets(STDIN);
        refused(fn () => value($db, "select 1"));
        expect(value(connection(), "select 1"), 1);
    },
];

echo "version: ", PHP_VERSION, "\n";
foreach ($checks as $name => $check) {
    try {
        $check();
        echo "$name: ok\n";
    } catch (Lacks $e) {
        echo "$name: none, {$e->getMessage()}\n";
    } catch (Throwable $e) {
        echo "$name: ", get_class($e), " ", preg_replace('/\s+/', " ", $e->getMessage()), "\n";
        fwrite(STDERR, "$e\n");
    }
}
