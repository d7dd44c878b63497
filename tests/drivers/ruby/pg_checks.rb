# Ruby's pg against pghandoff (see tests/drivers_test.go).
require "pg"
require "timeout"

RUN_DIR, ROUTE = ENV.fetch("RUN_DIR"), ENV.fetch("ROUTE")
TEXT = "Käse 'n' \\ ☕"
LARGE = "select repeat('x', 1000) from generate_series(1, 10000)"
LINES = Array.new(1000) { |i| "#{i}\tline #{i}\n" }

def connect(**more)
  conn = PG.connect(host: RUN_DIR, dbname: ROUTE, user: "app", **more)
  yield conn
ensure
  conn&.close
end

def expect(got, want)
  raise "got #{got.inspect[0, 200]}, want #{want.inspect[0, 200]}" unless got == want
end

def refused(error, sign)
  yield
rescue error => e
  state = e.respond_to?(:result) && e.result ? e.result.error_field(PG::PG_DIAG_SQLSTATE) : ""
  raise "no #{sign} in #{e.class} #{e.message}" unless "#{state} #{e.message}".include?(sign)
  e
else
  raise "no #{error}"
end

CHECKS = {
  connect: lambda {
    conn = PG.connect(host: RUN_DIR, dbname: ROUTE, user: "app")
    expect(conn.exec("select current_user").getvalue(0, 0), "app")
    expect(conn.server_version.to_s, conn.exec("show server_version_num").getvalue(0, 0))
    conn.close
  },
  settings: lambda {
    connect(application_name: "checks", options: "-c work_mem=5MB -c TimeZone=Asia/Tokyo") do |conn|
      { application_name: "checks", work_mem: "5MB", TimeZone: "Asia/Tokyo" }.each do |name, value|
        expect(conn.exec("show #{name}").getvalue(0, 0), value)
      end
      expect(conn.parameter_status("TimeZone"), "Asia/Tokyo")
    end
  },
  parameters: lambda {
    connect do |conn|
      values = [42, TEXT, nil, Time.utc(2026, 1, 2, 3, 4, 5), "\0\x01\xff".b, [1, 2, 3]]
      conn.type_map_for_queries = PG::BasicTypeMapForQueries.new(conn)
      conn.type_map_for_results = PG::BasicTypeMapForResults.new(conn)
      sent = [*values[0, 4], PG::BasicTypeMapForQueries::BinaryData.new(values[4]), values[5]]
      got = conn.exec_params("select $1::int, $2::text, $3::text, $4::timestamptz, $5::bytea, $6::int[]", sent).values[0]
      expect(got, values)
    end
  },
  prepared: lambda {
    connect do |conn|
      conn.prepare("plus_one", "select $1::int + 1")
      100.times { |i| expect(conn.exec_prepared("plus_one", [i]).getvalue(0, 0), (i + 1).to_s) }
      expect(conn.exec("select name from pg_prepared_statements").values, [["plus_one"]])
    end
  },
  copy: lambda {
    connect do |conn|
      conn.exec("create temp table copied (a int, b text)")
      conn.copy_data("copy copied from stdin") { LINES.each { |line| conn.put_copy_data(line) } }
      out = []
      conn.copy_data("copy copied to stdout") { while (line = conn.get_copy_data); out << line; end }
      expect(out, LINES)
    end
  },
  notify: lambda {
    connect do |listener|
      connect do |sender|
        listener.exec("listen checks_ruby")
        sender.exec_params("select pg_notify('checks_ruby', $1)", [TEXT])
        got = nil
        listener.wait_for_notify(20) { |_, pid, payload| got = [pid, payload] }
        expect(got, [sender.backend_pid, TEXT])
      end
    end
  },
  cancel: lambda {
    connect do |conn|
      connect do |watcher|
        sleeping = "select count(*) from pg_stat_activity where pid = #{conn.backend_pid} and wait_event = 'PgSleep'"
        thread = Thread.new do
          sleep 0.01 until watcher.exec(sleeping).getvalue(0, 0) == "1"
          conn.cancel
        end
        refused(PG::QueryCanceled, "57014") { conn.exec("select pg_sleep(60)") }
        expect(thread.value, nil)
        expect(conn.exec("select 1").getvalue(0, 0), "1")
      end
    end
  },
  errors: lambda {
    connect do |conn|
      conn.exec("create temp table once (a int constraint only_once unique)")
      conn.exec("insert into once values (1)")
      e = refused(PG::UniqueViolation, "23505") { conn.exec("insert into once values (1)") }
      expect(e.result.error_field(PG::PG_DIAG_CONSTRAINT_NAME), "only_once")
    end
    refused(PG::ConnectionBad, "nosuch") { PG.connect(host: RUN_DIR, dbname: "nosuch", user: "app") }
  },
  large: lambda {
    connect do |conn|
      rows = conn.exec(LARGE).column_values(0)
      expect([rows.size, rows.uniq], [10_000, ["x" * 1000]])
    end
  },
  reconnect: lambda {
    connect do |conn|
      conn.exec("select 1")
      puts "restart?"
      $stdin.gets
      refused(PG::Error, "") { conn.exec("select 1") }
      conn.reset # libpq's own way to connect anew
      expect(conn.exec("select 1").getvalue(0, 0), "1")
    end
  }
}.freeze

$stdout.sync = true
puts "version: #{PG::VERSION}"
CHECKS.each do |name, check|
  Timeout.timeout(30) { check.call }
  puts "#{name}: ok"
rescue StandardError, Timeout::Error => e
  puts "#{name}: #{e.class} #{e.message.split.join(' ')}"
  warn e.full_message
end
