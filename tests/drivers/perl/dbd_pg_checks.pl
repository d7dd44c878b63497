# Perl's DBD::Pg against pghandoff (see tests/drivers_test.go).
use strict;
use warnings;
use utf8;
use open qw(:std :utf8);
use DBI;
use DBD::Pg qw(:async PG_BYTEA);

my ($RUN_DIR, $ROUTE) = @ENV{qw(RUN_DIR ROUTE)};
my $TEXT  = "Käse 'n' \\ ☕";
my $LARGE = "select repeat('x', 1000) from generate_series(1, 10000)";
my @LINES = map { "$_\tline $_\n" } 0 .. 999;
my %OPTIONS = (RaiseError => 1, PrintError => 0, AutoCommit => 1);

sub connection {
    my ($more) = @_;
    return DBI->connect("dbi:Pg:host=$RUN_DIR;dbname=$ROUTE" . ($more // ""), "app", "", {%OPTIONS});
}

sub expect {
    my ($got, $want) = map { defined ? $_ : "undef" } @_;
    die "got " . substr($got, 0, 200) . ", want " . substr($want, 0, 200) . "\n" if $got ne $want;
}

sub value { my ($dbh, @query) = @_; return $dbh->selectrow_array($query[0], undef, @query[1 .. $#query]) }

# refused runs an action that must fail; returns the SQLSTATE and what was said.
sub refused {
    my ($action) = @_;
    return ($DBI::state, $@) unless eval { $action->(); 1 };
    die "no error\n";
}

my @CHECKS = (
    connect => sub {
        my $dbh = DBI->connect("dbi:Pg:host=$RUN_DIR;dbname=$ROUTE", "app", "");
        expect(value($dbh, "select current_user"), "app");
        expect($dbh->{pg_server_version}, value($dbh, "show server_version_num"));
        $dbh->disconnect;
    },
    settings => sub {
        my $dbh = connection(";application_name=checks;options='-c work_mem=5MB -c TimeZone=Asia/Tokyo'");
        expect(value($dbh, "show application_name"), "checks");
        expect(value($dbh, "show work_mem"), "5MB");
        expect(value($dbh, "show TimeZone"), "Asia/Tokyo");
        $dbh->disconnect;
    },
    parameters => sub {
        my $dbh = connection();
        my $sth = $dbh->prepare("select ?::int, ?::text, ?::text, ?::timestamptz at time zone 'UTC', ?::bytea, ?::int[]");
        my @values = (42, $TEXT, undef, "2026-01-02 03:04:05+00", "\x00\x01\xff", [1, 2, 3]);
        $sth->bind_param($_ + 1, $values[$_], $_ == 4 ? {pg_type => PG_BYTEA} : undef) for 0 .. $#values;
        $sth->execute;
        my @got = $sth->fetchrow_array;
        expect($got[0], 42);
        expect($got[1], $TEXT);
        expect($got[2], undef);
        expect($got[3], "2026-01-02 03:04:05");
        expect($got[4], $values[4]);
        expect("@{$got[5]}", "1 2 3");
        $sth->finish;
        $dbh->disconnect;
    },
    prepared => sub {
        my $dbh = connection();
        my $sth = $dbh->prepare("select ?::int + 1", {pg_prepare_now => 1});
        for my $i (0 .. 99) {
            $sth->execute($i);
            expect($sth->fetchall_arrayref->[0][0], $i + 1);
        }
        my $named = $dbh->selectcol_arrayref("select name from pg_prepared_statements where statement like '%+ 1'");
        expect("@$named", $sth->{pg_prepare_name});
        undef $sth;
        $dbh->disconnect;
    },
    copy => sub {
        my $dbh = connection();
        $dbh->do("create temp table copied (a int, b text)");
        $dbh->do("copy copied from stdin");
        $dbh->pg_putcopydata($_) for @LINES;
        $dbh->pg_putcopyend;
        $dbh->do("copy copied to stdout");
        my ($line, @out);
        push @out, $line while $dbh->pg_getcopydata(\$line) >= 0;
        expect(join("", @out), join("", @LINES));
        $dbh->disconnect;
    },
    notify => sub {
        my ($listener, $sender) = (connection(), connection());
        $listener->do("listen checks_perl");
        $sender->do("select pg_notify('checks_perl', ?)", undef, $TEXT);
        my $notice;
        until ($notice = $listener->pg_notifies) {
            my $ready = "";
            vec($ready, $listener->{pg_socket}, 1) = 1;
            select($ready, undef, undef, 1);
        }
        expect($notice->[1], $sender->{pg_pid});
        expect($notice->[2], $TEXT);
        $_->disconnect for $listener, $sender;
    },
    cancel => sub {
        my ($dbh, $watcher) = (connection(), connection());
        $dbh->do("select pg_sleep(60)", {pg_async => PG_ASYNC});
        my $sleeping = "select count(*) from pg_stat_activity where pid = $dbh->{pg_pid} and wait_event = 'PgSleep'";
        select(undef, undef, undef, 0.01) until value($watcher, $sleeping);
        expect($dbh->pg_cancel ? "cancelled" : "not cancelled", "cancelled");
        expect($dbh->state, "57014");
        expect(value($dbh, "select 1"), 1);
        $_->disconnect for $dbh, $watcher;
    },
    errors => sub {
        my $dbh = connection();
        $dbh->do("set client_min_messages = warning");
        $dbh->do("create temp table once (a int constraint only_once unique)");
        $dbh->do("insert into once values (1)");
        my ($state, $text) = refused(sub { $dbh->do("insert into once values (1)") });
        expect($state, "23505");
        die "no name of the constraint in: $text" unless $text =~ /only_once/;
        $dbh->disconnect;
        (undef, $text) = refused(sub { DBI->connect("dbi:Pg:host=$RUN_DIR;dbname=nosuch", "app", "", {%OPTIONS}) });
        die "no name of the route in: $text" unless $text =~ /nosuch/;
    },
    large => sub {
        my $dbh = connection();
        my $rows = $dbh->selectcol_arrayref($LARGE);
        expect(scalar(@$rows), 10000);
        expect(scalar(grep { $_ ne "x" x 1000 } @$rows), 0);
        $dbh->disconnect;
    },
    reconnect => sub {
        my $dbh = connection();
        expect(value($dbh, "select 1"), 1);
        print "restart?\n";
        <STDIN>;
        refused(sub { value($dbh, "select 1") });
        expect($dbh->ping ? "alive" : "dead", "dead");
        $dbh = $dbh->clone;
        expect(value($dbh, "select 1"), 1);
        $dbh->disconnect;
    },
);

$| = 1;
print "version: $DBD::Pg::VERSION\n";
while (my ($name, $check) = splice(@CHECKS, 0, 2)) {
    my $said = eval { local $SIG{ALRM} = sub { die "no answer within 30 s\n" }; alarm 30; $check->(); 1 } ? "ok" : $@;
    alarm 0;
    $said =~ s/\s+/ /g;
    print "$name: $said\n";
}
