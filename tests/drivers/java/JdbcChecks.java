// pgjdbc against pghandoff (see tests/drivers_test.go).

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Array;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.TimeZone;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyManager;
import org.postgresql.util.PSQLException;

public class JdbcChecks {
    static final String ADDRESS = System.getenv("ADDRESS");
    static final String ROUTE = System.getenv("ROUTE");
    static final String ROOTS = System.getenv("ROOTS");
    static final String USER = System.getenv("LOGIN");
    static final String PASSWORD = System.getenv("PASSWORD");
    static final String TEXT = "Käse 'n' \\ ☕";
    static final String LARGE = "select repeat('x', 1000) from generate_series(1, 10000)";
    static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));

    interface Check {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("connect", JdbcChecks::connects);
        checks.put("settings", JdbcChecks::settings);
        checks.put("parameters", JdbcChecks::parameters);
        checks.put("prepared", JdbcChecks::prepared);
        checks.put("copy", JdbcChecks::copy);
        checks.put("notify", JdbcChecks::notifies);
        checks.put("cancel", JdbcChecks::cancel);
        checks.put("errors", JdbcChecks::errors);
        checks.put("large", JdbcChecks::large);
        checks.put("reconnect", JdbcChecks::reconnect);
        System.out.println("version: " + org.postgresql.util.DriverInfo.DRIVER_VERSION);
        for (Map.Entry<String, Check> check : checks.entrySet()) {
            String said = "ok";
            try {
                check.getValue().run();
            } catch (Exception | AssertionError e) {
                said = e.toString().replaceAll("\\s+", " ");
                e.printStackTrace();
            }
            System.out.println(check.getKey() + ": " + said);
        }
    }

    static Connection connect(String route, String more) throws SQLException {
        return DriverManager.getConnection("jdbc:postgresql://" + ADDRESS + "/" + route + "?sslmode=verify-full&sslrootcert=" + ROOTS + more, USER, PASSWORD);
    }

    static void expect(Object got, Object want) {
        if (!Objects.deepEquals(got, want)) {
            throw new AssertionError("got " + got + ", want " + want);
        }
    }

    static Object value(Connection c, String sql) throws SQLException {
        try (Statement s = c.createStatement(); ResultSet r = s.executeQuery(sql)) {
            r.next();
            return r.getObject(1);
        }
    }

    static void execute(Connection c, String sql) throws SQLException {
        try (Statement s = c.createStatement()) {
            s.execute(sql);
        }
    }

    static PSQLException refused(Check action, String state) throws Exception {
        try {
            action.run();
        } catch (PSQLException e) {
            if (state != null) {
                expect(e.getSQLState(), state);
            }
            return e;
        }
        throw new AssertionError("no PSQLException");
    }

    static void connects() throws Exception {
        try (Connection c = DriverManager.getConnection("jdbc:postgresql://" + ADDRESS + "/" + ROUTE + "?sslmode=verify-full&sslrootcert=" + ROOTS, USER, PASSWORD)) {
            expect(value(c, "select current_user"), "app");
            expect(c.getMetaData().getDatabaseMajorVersion() + "", value(c, "show server_version_num").toString().substring(0, 2));
        }
    }

    static void settings() throws Exception {
        TimeZone before = TimeZone.getDefault();
        TimeZone.setDefault(TimeZone.getTimeZone("Asia/Tokyo")); // the driver sends it on its own
        try (Connection c = connect(ROUTE, "&ApplicationName=checks&options=-c%20work_mem=5MB")) {
            expect(value(c, "show application_name"), "checks");
            expect(value(c, "show work_mem"), "5MB");
            expect(value(c, "show TimeZone"), "Asia/Tokyo");
            expect(c.unwrap(PGConnection.class).getParameterStatus("TimeZone"), "Asia/Tokyo");
        } finally {
            TimeZone.setDefault(before);
        }
    }

    static void parameters() throws Exception {
        OffsetDateTime when = OffsetDateTime.of(2026, 1, 2, 3, 4, 5, 6000, ZoneOffset.UTC);
        byte[] bytes = {0, 1, (byte) 255};
        try (Connection c = connect(ROUTE, "");
                PreparedStatement p = c.prepareStatement("select ?::int, ?::text, ?::text, ?::timestamptz, ?::bytea, ?::int[]")) {
            p.setInt(1, 42);
            p.setString(2, TEXT);
            p.setNull(3, Types.VARCHAR);
            p.setObject(4, when);
            p.setBytes(5, bytes);
            Array numbers = c.createArrayOf("int4", new Integer[] {1, 2, 3});
            p.setArray(6, numbers);
            for (int i = 0; i < 10; i++) { // past the threshold at which the driver turns to binary
                ResultSet r = p.executeQuery();
                r.next();
                expect(r.getInt(1), 42);
                expect(r.getString(2), TEXT);
                expect(r.getString(3), null);
                expect(r.getObject(4, OffsetDateTime.class).toInstant(), when.toInstant());
                expect(r.getBytes(5), bytes);
                expect(r.getArray(6).getArray(), new Integer[] {1, 2, 3});
            }
        }
    }

    static void prepared() throws Exception {
        try (Connection c = connect(ROUTE, "&prepareThreshold=1"); PreparedStatement p = c.prepareStatement("select ?::int + 1")) {
            for (int i = 0; i < 100; i++) {
                p.setInt(1, i);
                ResultSet r = p.executeQuery();
                r.next();
                expect(r.getInt(1), i + 1);
            }
            expect(value(c, "select count(*) from pg_prepared_statements where statement like '%+ 1'"), 1L);
        }
    }

    static void copy() throws Exception {
        StringBuilder lines = new StringBuilder();
        for (int i = 0; i < 1000; i++) {
            lines.append(i).append("\tline ").append(i).append('\n');
        }
        try (Connection c = connect(ROUTE, "")) {
            execute(c, "create temp table copied (a int, b text)");
            CopyManager copies = c.unwrap(PGConnection.class).getCopyAPI();
            expect(copies.copyIn("copy copied from stdin", new StringReader(lines.toString())), 1000L);
            StringWriter out = new StringWriter();
            expect(copies.copyOut("copy copied to stdout", out), 1000L);
            expect(out.toString(), lines.toString());
        }
    }

    static void notifies() throws Exception {
        try (Connection listener = connect(ROUTE, ""); Connection sender = connect(ROUTE, "")) {
            execute(listener, "listen checks_jdbc");
            try (PreparedStatement p = sender.prepareStatement("select pg_notify('checks_jdbc', ?)")) {
                p.setString(1, TEXT);
                p.execute();
            }
            PGNotification[] came = listener.unwrap(PGConnection.class).getNotifications(20000);
            expect(came.length, 1);
            expect(came[0].getParameter(), TEXT);
            expect(came[0].getPID(), sender.unwrap(PGConnection.class).getBackendPID());
        }
    }

    static void cancel() throws Exception {
        try (Connection c = connect(ROUTE, ""); Connection watcher = connect(ROUTE, ""); Statement s = c.createStatement()) {
            int pid = c.unwrap(PGConnection.class).getBackendPID();
            Thread stopper = new Thread(() -> {
                try {
                    while (!value(watcher, "select count(*) from pg_stat_activity where pid = " + pid + " and wait_event = 'PgSleep'").equals(1L)) {
                        Thread.sleep(10);
                    }
                    s.cancel();
                } catch (Exception e) {
                    e.printStackTrace();
                }
            });
            stopper.start();
            refused(() -> s.execute("select pg_sleep(60)"), "57014");
            stopper.join();
            expect(value(c, "select 1"), 1);
        }
    }

    static void errors() throws Exception {
        try (Connection c = connect(ROUTE, "")) {
            execute(c, "create temp table once (a int constraint only_once unique)");
            execute(c, "insert into once values (1)");
            PSQLException e = refused(() -> execute(c, "insert into once values (1)"), "23505");
            expect(e.getServerErrorMessage().getConstraint(), "only_once");
        }
        refused(() -> connect("nosuch", "").close(), "3D000");
    }

    static void large() throws Exception {
        String line = "x".repeat(1000);
        for (int fetch : new int[] {0, 100}) { // all at once, and from a portal
            try (Connection c = connect(ROUTE, "")) {
                c.setAutoCommit(false);
                Statement s = c.createStatement();
                s.setFetchSize(fetch);
                ResultSet r = s.executeQuery(LARGE);
                int rows = 0;
                for (; r.next(); rows++) {
                    expect(r.getString(1), line);
                }
                expect(rows, 10000);
            }
        }
    }

    static void reconnect() throws Exception {
        try (Connection c = connect(ROUTE, "")) {
            expect(value(c, "select 1"), 1);
            System.out.println("restart?");
            ANSWERS.readLine();
            refused(() -> value(c, "select 1"), null);
            expect(c.isValid(1), false);
        }
        try (Connection c = connect(ROUTE, "")) {
            expect(value(c, "select 1"), 1);
        }
    }
}
