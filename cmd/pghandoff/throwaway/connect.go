package throwaway

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// URL returns a libpq URL for Role on the TCP port, with its password, as strict as the server allows: verify-full and
// the client certificate. Parameters such as "sslmode=verify-ca" or "application_name=x" replace or add to it; an empty
// value removes ("sslcert=", and also "password=").
func (c *Cluster) URL(parameters ...string) string {
	q := url.Values{}
	q.Set("sslmode", "disable")
	if c.RootsFile != "" {
		q.Set("sslmode", "verify-full")
		q.Set("sslrootcert", c.RootsFile)
	}
	if c.ClientCertFile != "" {
		q.Set("sslcert", c.ClientCertFile)
		q.Set("sslkey", c.ClientKeyFile)
	}
	user, password, database := c.Role, c.Password, c.Database
	for _, p := range parameters {
		name, value, _ := strings.Cut(p, "=")
		switch {
		case name == "user":
			user = value
		case name == "password":
			password = value
		case name == "dbname":
			database = value
		case value == "":
			q.Del(name)
		default:
			q.Set(name, value)
		}
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Path: "/" + database, RawQuery: q.Encode(),
		Host: fmt.Sprintf("%s:%d", c.Host, c.Port)}
	if password == "" {
		u.User = url.User(user)
	}
	return u.String()
}

// SuperuserDSN returns a libpq key/value string for the superuser on the private socket, where no password is asked.
// An empty database means Database.
func (c *Cluster) SuperuserDSN(database string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", quote(c.SocketDir), c.Port, superuser,
		quote(or(database, c.Database)))
}

// quote makes a value of a key/value string.
func quote(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}

// Psql runs SQL as the superuser in Database, several statements if need be, and returns what "psql -At" would print:
// fields parted by "|", one row a line, without a line break at the end.
func (c *Cluster) Psql(ctx context.Context, sql string) (string, error) {
	return c.run(ctx, c.Database, sql)
}

func (c *Cluster) run(ctx context.Context, database, sql string) (string, error) {
	conn, err := pgconn.Connect(ctx, c.SuperuserDSN(database))
	if err != nil {
		return "", fmt.Errorf("connect as superuser: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", fmt.Errorf("run SQL as superuser: %w", err)
	}
	var lines []string
	for _, result := range results {
		for _, row := range result.Rows {
			fields := make([]string, len(row))
			for i, value := range row {
				fields[i] = string(value)
			}
			lines = append(lines, strings.Join(fields, "|"))
		}
	}
	return strings.Join(lines, "\n"), nil
}

// ping connects as the superuser to the maintenance database over the private socket: only this server can answer
// there.
func (c *Cluster) ping(ctx context.Context) error {
	_, err := c.run(ctx, superuser, "select 1")
	return err
}

// makeRoles makes what Config asks for.
func (c *Cluster) makeRoles(ctx context.Context) error {
	roles := append([]Role{{Name: c.Role, Password: c.Password}}, c.config.Roles...)
	for _, r := range roles {
		sql := "CREATE ROLE " + pgx.Identifier{r.Name}.Sanitize() + " LOGIN " + r.Options
		if r.Password != "" {
			sql += " PASSWORD '" + strings.ReplaceAll(r.Password, "'", "''") + "'"
		}
		if _, err := c.run(ctx, superuser, sql); err != nil {
			return fmt.Errorf("role %s: %w", r.Name, err)
		}
	}
	for _, database := range append([]string{c.Database}, c.config.Databases...) {
		sql := "CREATE DATABASE " + pgx.Identifier{database}.Sanitize() + " OWNER " + pgx.Identifier{c.Role}.Sanitize()
		if _, err := c.run(ctx, superuser, sql); err != nil {
			return fmt.Errorf("database %s: %w", database, err)
		}
	}
	return nil
}
