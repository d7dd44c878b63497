package handoff_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pghandoff/handoff"
)

func ptr[T any](v T) *T { return &v }

func TestCallsAreReadAsTheProtocolHasThem(t *testing.T) {
	full := handoff.Call{ID: ptr("a1"), Op: handoff.OpAcquire, Database: "orders", User: "app", State: handoff.Ready,
		Transport: handoff.Any, Wait: ptr(5 * time.Second), ApplicationName: "resize-image",
		Parameters: []handoff.Parameter{{Name: "TimeZone", Value: "UTC"}}}
	plain := handoff.Call{Op: handoff.OpPing, State: handoff.Startup, Transport: handoff.Any}
	cases := map[string]struct {
		line string
		want handoff.Call
	}{
		"all of an acquire": {`{"v":1,"id":"a1","op":"acquire","database":"orders","user":"app","state":"ready","transport":"any",
			"wait_ms":5000,"application_name":"resize-image","parameters":{"TimeZone":"UTC"}}`, full},
		"defaults, blank space, carriage return": {" { \"v\" : 1 ,\t\"op\" : \"ping\" } \r", plain},
		"unknown names of every kind": {`{"v":1,"V":2,"Op":"x","x":{"a":[1,-2.5e+3,"\u00e9",null,true,{"b":{}}]},"op":"ping"}`,
			plain},
		"escapes and a surrogate pair": {`{"v":1,"op":"ping","id":"\u0041\n\"\\\/\ud83d\ude00"}`,
			handoff.Call{ID: ptr("A\n\"\\/😀"), Op: handoff.OpPing, State: handoff.Startup, Transport: handoff.Any}},
		"empty id and parameters": {`{"v":1,"op":"ping","id":"","parameters":{}}`,
			handoff.Call{ID: ptr(""), Op: handoff.OpPing, State: handoff.Startup, Transport: handoff.Any}},
		"release with the largest secret": {`{"v":1,"op":"release","lease":"l","secret":4294967295}`,
			handoff.Call{Op: handoff.OpRelease, Lease: "l", Secret: ptr(handoff.Secret(1<<32 - 1)), State: handoff.Startup,
				Transport: handoff.Any}},
		"no waiting": {`{"v":1,"op":"acquire","wait_ms":0}`, handoff.Call{Op: handoff.OpAcquire, Wait: ptr(time.Duration(0)),
			State: handoff.Startup, Transport: handoff.Any}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := handoff.ParseCall([]byte(c.line))
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func TestMalformedCallsAreRefused(t *testing.T) {
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprintf(`"p%d":""`, i)
	}
	cases := map[string]struct{ line, says string }{
		"empty line":                 {``, "'{' expected"},
		"array":                      {`[]`, "'{' expected"},
		"two objects":                {`{"v":1,"op":"ping"}{}`, "something follows"},
		"cut off":                    {`{"v":1,"op":"pi`, "does not end"},
		"trailing comma":             {`{"v":1,"op":"ping",}`, "expected"},
		"byte order mark":            {"\ufeff{\"v\":1,\"op\":\"ping\"}", "expected"},
		"no version":                 {`{"op":"ping"}`, `"v" is missing`},
		"other version":              {`{"v":2,"op":"ping"}`, "version 2 is unknown"},
		"version as string":          {`{"v":"1","op":"ping"}`, "a number expected"},
		"version as fraction":        {`{"v":1.0,"op":"ping"}`, "whole number"},
		"version with leading zero":  {`{"v":01,"op":"ping"}`, "a number expected"},
		"no op":                      {`{"v":1}`, `"op" is missing`},
		"unknown op":                 {`{"v":1,"op":"acquirE"}`, "must be one of"},
		"other case of a name":       {`{"V":1,"op":"ping"}`, `"v" is missing`},
		"duplicate name":             {`{"v":1,"op":"ping","op":"ping"}`, "occurs twice"},
		"duplicate by escape":        {`{"v":1,"op":"ping","\u006fp":"ping"}`, "occurs twice"},
		"duplicate parameter":        {`{"v":1,"op":"acquire","parameters":{"a":"1","a":"2"}}`, "occurs twice"},
		"duplicate in unknown":       {`{"v":1,"op":"ping","x":[{"a":1,"a":2}]}`, "occurs twice"},
		"not UTF-8":                  {"{\"v\":1,\"op\":\"ping\",\"x\":\"\xff\"}", "UTF-8"},
		"lone surrogate":             {`{"v":1,"op":"ping","x":"\ud800"}`, "invalid escape"},
		"two high surrogates":        {`{"v":1,"op":"ping","x":"\ud800\ud800"}`, "invalid escape"},
		"NUL":                        {`{"v":1,"op":"acquire","database":"a\u0000b"}`, "NUL"},
		"raw NUL":                    {"{\"v\":1,\"op\":\"ping\",\"x\":\"\x00\"}", "control character"},
		"NUL in a name":              {`{"v":1,"op":"acquire","parameters":{"a\u0000":"b"}}`, "NUL"},
		"id too long":                {`{"v":1,"op":"ping","id":"` + strings.Repeat("x", 65) + `"}`, "longer than 64"},
		"id as number":               {`{"v":1,"op":"ping","id":7}`, `'"' expected`},
		"null":                       {`{"v":1,"op":"acquire","user":null}`, `'"' expected`},
		"negative wait":              {`{"v":1,"op":"acquire","wait_ms":-1}`, "whole number"},
		"huge wait":                  {`{"v":1,"op":"acquire","wait_ms":99999999999999999999}`, "whole number"},
		"secret of 33 bits":          {`{"v":1,"op":"cancel","lease":"l","secret":4294967296}`, "whole number"},
		"cancel without lease":       {`{"v":1,"op":"cancel","secret":1}`, `"lease" is missing`},
		"unknown state":              {`{"v":1,"op":"acquire","state":"READY"}`, "must be one of"},
		"unknown transport":          {`{"v":1,"op":"acquire","transport":"tls"}`, "must be one of"},
		"parameter that is a number": {`{"v":1,"op":"acquire","parameters":{"work_mem":64}}`, "expected"},
		"parameters as array":        {`{"v":1,"op":"acquire","parameters":[]}`, "expected"},
		"too many parameters":        {`{"v":1,"op":"acquire","parameters":{` + strings.Join(many, ",") + `}}`, "more than 128"},
		"too deep":                   {`{"v":1,"op":"ping","x":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}`, "nested"},
		"too long":                   {`{"v":1,"op":"ping","x":"` + strings.Repeat("x", 8<<10) + `"}`, "longer than 8 KiB"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := handoff.ParseCall([]byte(c.line))
			if !handoff.IsCode(err, "08P01") || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want 08P01 with %q", err, c.says)
			}
		})
	}
}

func TestIDComesBackFromAMalformedCall(t *testing.T) {
	c, err := handoff.ParseCall([]byte(`{"v":1,"id":"a1","op":"fly"}`))
	if err == nil || c.ID == nil || *c.ID != "a1" {
		t.Errorf("got %v, %v", c.ID, err)
	}
}

func TestOverlongLinesAreNotWritten(t *testing.T) {
	long := strings.Repeat("x", 70<<10)
	if out, err := handoff.AppendCall([]byte("kept"), handoff.Call{Op: handoff.OpAcquire, Database: long}); err == nil ||
		string(out) != "kept" {
		t.Errorf("call: %d bytes, %v", len(out), err)
	}
	if out, err := handoff.AppendReply([]byte("kept"), handoff.Reply{Refusal: &handoff.Refusal{Message: long}}); err == nil ||
		string(out) != "kept" {
		t.Errorf("reply: %d bytes, %v", len(out), err)
	}
}

func TestReplyKeepsToTheProtocolsSpelling(t *testing.T) {
	granted := handoff.Reply{ID: ptr("a1"), Granted: &handoff.Granted{Lease: "0190", Transport: handoff.Bridge,
		State: handoff.Ready, Tx: 'I', PID: 4211, Secret: ptr(handoff.Secret(182736455)),
		Parameters: []handoff.Parameter{{Name: "server_version", Value: "17.2"}, {Name: "TimeZone", Value: "UTC\xff"}}}}
	refused := handoff.Reply{ID: ptr("a1"), Refusal: &handoff.Refusal{SQLState: "28000", Message: `no "orders"`, Hint: "h"}}
	for want, r := range map[string]handoff.Reply{
		`{"v":1,"id":"a1","ok":true,"lease":"0190","transport":"bridge","state":"ready","tx":"I","pid":4211,` +
			`"secret":182736455,"parameters":{"server_version":"17.2","TimeZone":"UTC�"}}` + "\n": granted,
		`{"v":1,"id":"a1","ok":false,"sqlstate":"28000","message":"no \"orders\"","hint":"h","retry":false}` + "\n": refused,
		`{"v":1,"ok":true}` + "\n": {},
	} {
		if got, err := handoff.AppendReply(nil, r); err != nil || string(got) != want {
			t.Errorf("got  %s%v\nwant %s", got, err, want)
		}
	}
	first, _ := handoff.AppendReply(nil, granted)
	written := *granted.Granted
	written.Written, written.Parameters = handoff.WriteParameters(written.Parameters), nil
	if again, err := handoff.AppendReply(nil, handoff.Reply{ID: granted.ID, Granted: &written}); err != nil || string(again) != string(first) {
		t.Errorf("with parameters that were written before: %s%v", again, err)
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	secret := handoff.Secret(182736455)
	g := handoff.Granted{Lease: "l", Secret: &secret}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%q", "%08b"} {
		for _, v := range []any{secret, &secret, g, &handoff.Lease{Secret: secret}, handoff.Claim{Secret: &secret}} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, "182736455") || strings.Contains(text, "ae45a47") {
				t.Errorf("%s of %T prints %s", verb, v, text)
			}
		}
	}
	if text, err := secret.MarshalText(); err != nil || string(text) != "[redacted]" {
		t.Errorf("got %s, %v", text, err)
	}
}

// Any line is refused with 08P01 or read; what is read, written and read again is the same, and so are the bytes.
func FuzzParseCall(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":"a1","op":"acquire","database":"orders","user":"app","state":"ready","transport":"any","wait_ms":5000}`))
	f.Add([]byte(`{"v":1,"op":"cancel","lease":"0190","secret":182736455}`))
	f.Add([]byte(`{"v":1,"op":"ping","x":[{"a":-1.5e3},null,"\ud83d\ude00"],"parameters":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		first, err := handoff.ParseCall(line)
		if err != nil {
			if !handoff.IsCode(err, "08P01") {
				t.Errorf("refused with %v", err)
			}
			return
		}
		written, err := handoff.AppendCall(nil, first)
		if err != nil {
			return // escapes can make a line longer than it was
		}
		second, err := handoff.ParseCall(written[:len(written)-1])
		if first.Op != handoff.OpAcquire { // not written for others
			first.State, first.Transport = handoff.Startup, handoff.Any
		}
		if err != nil || !reflect.DeepEqual(first, second) {
			t.Errorf("%s\nread as %+v, again as %+v, %v", line, first, second, err)
		}
		rewritten, err := handoff.AppendCall(nil, second)
		if err != nil || string(rewritten) != string(written) {
			t.Errorf("written as %s, again as %s, %v", written, rewritten, err)
		}
	})
}

func FuzzParseReply(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":"a","ok":true,"lease":"l","transport":"bridge","state":"ready","tx":"I","pid":1,"secret":2,"parameters":{"a":"b"}}`))
	f.Add([]byte(`{"v":1,"ok":false,"sqlstate":"28000","message":"m","hint":"h","retry":true}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		first, err := handoff.ParseReply(line)
		if err != nil {
			if refusal := (*handoff.Refusal)(nil); errors.As(err, &refusal) {
				t.Error("a malformed reply looks like a refusal")
			}
			return
		}
		written, err := handoff.AppendReply(nil, first)
		if err != nil {
			return
		}
		second, err := handoff.ParseReply(written[:len(written)-1])
		if err != nil || !reflect.DeepEqual(first, second) {
			t.Errorf("%s\nread as %+v, again as %+v, %v", line, first, second, err)
		}
	})
}
