package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// ErrNoDaemon: nothing answers on the control socket.
var ErrNoDaemon = errors.New("no daemon answers there")

// maxAnswer bounds an answer of the daemon. 16 MiB.
const maxAnswer = 16 << 20

// Client asks a daemon. It is safe for concurrent use.
type Client struct {
	path string
	http *http.Client
}

// Dial returns a client of the control socket at path; it connects with the
// first request.
func Dial(path string) *Client {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	return &Client{path: path, http: &http.Client{Transport: transport}}
}

// Status asks for the status. Errors wrap [ErrNoDaemon] if none answers.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	body, err := c.do(ctx, http.MethodGet, "/status")
	if err != nil {
		return nil, err
	}
	s := new(Status)
	if err := json.Unmarshal(body, s); err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	return s, nil
}

// Reload makes the daemon read its configuration anew. If that is not valid
// the old one stays and the error says why.
func (c *Client) Reload(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/reload")
	return err
}

// Drain makes the daemon stop as on SIGTERM; it returns at once.
func (c *Client) Drain(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/drain")
	return err
}

// RotateIdentity makes the daemon look at an identity's source now. The error says
// why what is there is not used.
func (c *Client) RotateIdentity(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodPost, "/identity/rotate?name="+url.QueryEscape(name))
	return err
}

// RevokeIdentity makes the daemon give up the certificate of an identity.
func (c *Client) RevokeIdentity(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodPost, "/identity/revoke?name="+url.QueryEscape(name))
	return err
}

func (c *Client) do(ctx context.Context, method, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://pghandoff"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return nil, fmt.Errorf("%w: %s: %w", ErrNoDaemon, c.path, op.Err)
		}
		return nil, fmt.Errorf("ask daemon: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("ask daemon: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(body)))
	}
	return body, nil
}
