package agentapi_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/agentapi"
	"freehold.dev/freehold/internal/kernel/store"
)

// send gives the hub any bytes, and fails when they are its fault: whatever an agent sends is served or refused, in the
// hub's words.
func send(t *testing.T, w *world, method, path, authorization string, body []byte) (int, map[string]any) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body))
	if authorization != "" {
		r.Header["Authorization"] = []string{authorization}
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	answer, err := io.ReadAll(rec.Body)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Code >= 500 {
		t.Fatalf("%s %s with %q: %d %s", method, path, body, rec.Code, answer)
	}
	var out map[string]any
	if rec.Code != http.StatusNoContent {
		if err := json.Unmarshal(answer, &out); err != nil {
			t.Fatalf("%d %q: %v", rec.Code, answer, err)
		}
	}
	if rec.Code >= 400 && (out["code"] == "" || out["message"] == "" || out["correlation_id"] == "") {
		t.Fatalf("%d %s", rec.Code, answer)
	}
	return rec.Code, out
}

func FuzzReport(f *testing.F) {
	w := newWorld(f)
	a := w.online("node-a")
	i := w.declare(mutation("node-a", "orders", hub.Running, w.publish(content(1))))
	command := a.poll().Commands[0]
	bearer := "Bearer " + w.tokenOf(a)
	full := a.next(true, running("orders", i.Generation, "cfg-1"), protocol.StreamReport{
		StreamID: hub.NodeConfig, State: hub.Failed, CompletedActions: []string{"x"}, InterruptedActions: []string{"y"},
		Error: &hub.Failure{Class: hub.Capacity, Code: "disk_full", Message: "m"}, Metrics: &protocol.Metrics{LagMessages: -1},
	})
	full.Attempts = []protocol.AttemptReport{{AttemptID: command.AttemptID, State: hub.Acknowledged}}
	for _, seed := range []string{
		encode(f, full), encode(f, a.next(false)), `{}`, ``, `null`, `[]`, `{"streams":[null]}`,
		`{"boot_id":"boot-node-a-1","boot_seq":1,"report_seq":9223372036854775807,"full":true,"streams":[{"stream_id":"a","state":"running","generation":9223372036854775807}]}`,
		`{"boot_id":"boot-node-a-1","boot_seq":1,"report_seq":1e2}`, `{"streams":[{"error":{"class":"ambiguous","code":"\ud800"}}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		status, out := send(t, w, "POST", "/agent/v1/reports", bearer, body)
		if status == http.StatusOK {
			// What was accepted was a report of this very boot, and repeating it is not.
			var r protocol.Report
			if err := json.Unmarshal(body, &r); err != nil || r.BootID != a.boot.ID || r.BootSeq != a.boot.Seq || int64(out["accepted_seq"].(float64)) < 1 {
				t.Fatalf("accepted %q with %v", body, out)
			}
			if status, out := send(t, w, "POST", "/agent/v1/reports", bearer, body); status != http.StatusConflict || out["code"] != protocol.CodeStaleReport {
				t.Fatalf("accepted %q twice: %d %v", body, status, out)
			}
		}
		if err := w.store.View(t.Context(), func(r store.Reader) error {
			n, err := hub.Nodes.Get(r, "node-a")
			if err == nil && (n.Status.Boot != a.boot || n.Status.Presence != hub.PresenceOnline) {
				t.Errorf("%q made the node %+v", body, n.Status)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzEnrolment(f *testing.F) {
	w := newWorld(f, func(c *agentapi.Config) { c.Limits = agentapi.Limits{Failures: 1 << 30, Every: time.Nanosecond} })
	a := w.newAgent("node-a")
	good := a.enrolment(w.register("node-a"))
	wrong := good
	wrong.EnrolmentToken = "wrong"
	for _, seed := range []string{encode(f, wrong), `{}`, `null`, `{"labels":{"a":null}}`, `{"boot_seq":-1}`, `{"node_id":"node-a","capabilities":[""]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if status, out := send(t, w, "POST", "/agent/v1/enroll", "", body); status < 400 {
			t.Fatalf("enrolled by %q: %v", body, out)
		}
	})
}

func FuzzSession(f *testing.F) {
	w := newWorld(f, func(c *agentapi.Config) { c.Limits = agentapi.Limits{Failures: 1 << 30, Every: time.Nanosecond} })
	a := w.online("node-a")
	in := a.sessionRequest()
	_, out := w.session(in)
	in.Challenge = out["details"].(map[string]any)["challenge"].(string)
	in.Signature = base64.StdEncoding.EncodeToString(make([]byte, 64))
	for _, seed := range []string{encode(f, a.sessionRequest()), encode(f, in), `{}`, `null`, `{"refresh_credential":"a.b.c"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if status, out := send(t, w, "POST", "/agent/v1/session", "", body); status < 400 {
			t.Fatalf("a session without a signature, by %q: %v", body, out)
		}
	})
}

func FuzzLogAnswer(f *testing.F) {
	w := newWorld(f)
	a := w.online("node-a")
	bearer := "Bearer " + w.tokenOf(a)
	for _, seed := range []string{`{"lines":[{"time":"2026-01-01T00:00:00Z","source":"stdout","text":"x"}],"next":3}`, `{"lines":null,"next":0,"error":"no"}`, `{}`, `null`} {
		f.Add("some-id", []byte(seed))
	}
	f.Add("../x%2f", []byte(`{}`))
	f.Fuzz(func(t *testing.T, id string, body []byte) {
		if !pathWord(id) {
			return
		}
		if status, _ := send(t, w, "POST", "/agent/v1/requests/"+id, bearer, body); status < 400 {
			t.Fatalf("an answer to a question that nobody asked: %d", status)
		}
	})
}

func FuzzPoll(f *testing.F) {
	w := newWorld(f)
	a := w.online("node-a")
	bearer := "Bearer " + w.tokenOf(a)
	for _, seed := range []string{"0s", "1ns", "-1s", "1h", "x", "%zz", "", "1e9s", "9223372036854775807ns"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, wait string) {
		if d, err := time.ParseDuration(wait); !pathWord(wait) || err == nil && d > time.Millisecond {
			return // it would only wait
		}
		send(t, w, "GET", "/agent/v1/commands?wait="+wait, bearer, nil)
	})
}

func FuzzBearer(f *testing.F) {
	w := newWorld(f)
	a := w.online("node-a")
	good := "Bearer " + w.tokenOf(a)
	for _, seed := range []string{"", "Bearer", "Bearer a.b.c", "Basic x", "Bearer " + a.refresh, good[:len(good)-1], good + "x", "bearer  eyJhbGciOiJub25lIn0.e30."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, authorization string) {
		if authorization == good {
			return
		}
		status, out := send(t, w, "GET", "/agent/v1/commands", authorization, nil)
		if status != http.StatusUnauthorized && w.signature(authorization) != w.signature(good) {
			t.Fatalf("%q is let in: %d %v", authorization, status, out)
		}
	})
}
