package agentapi_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"freehold.dev/freehold/client/agentapi"
)

// answering is a hub that answers everything alike.
type answering struct {
	status int
	body   []byte
}

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	rec.WriteHeader(a.status)
	_, _ = rec.Write(a.body)
	resp := rec.Result()
	resp.Request = r
	return resp, nil
}

// Whatever a hub, or what stands in its place, answers: an agent gets a value or an error, and never a refusal without a
// code and a message.
func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{
		`{"commands":[{"attempt_id":"a","intent_id":"i","stream_id":"s","generation":3,"state":"running","expires_at":"2026-01-01T00:00:00Z","expires_in_ms":30000}],"full_required":true,"requests":[{"request_id":"r","kind":"logs"}]}`,
		`{"accepted_seq":3,"full_required":false}`, `{"code":"stale_report","message":"old","details":{"boot_seq":1,"report_seq":2}}`,
		`{"code":"challenge_required","message":"sign","details":{"challenge":"c"}}`, `{"code":"x","message":"y","details":[1]}`,
		`{"config_version":"cfg-1","engine":"process","digest":"sha256:00","content":"x"}`, `null`, `[]`, ``, `<html>`,
	} {
		for _, status := range []int{200, 401, 409, 502} {
			f.Add(status, []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 599 {
			return
		}
		c, err := agentapi.New(agentapi.Options{Server: "http://hub", HTTPClient: &http.Client{Transport: answering{status, body}}})
		if err != nil {
			t.Fatal(err)
		}
		_, reported := c.Report(t.Context(), agentapi.Report{})
		_, polled := c.Commands(t.Context(), 0)
		_, fetched := c.Config(t.Context(), "cfg-1")
		_, renewed := c.Session(t.Context(), agentapi.SessionRequest{}, make([]byte, 64))
		for _, err := range []error{reported, polled, fetched, renewed, c.AnswerRequest(t.Context(), "r", agentapi.LogAnswer{})} {
			var refused *agentapi.Error
			switch {
			case errors.As(err, &refused):
				if refused.Code == "" || refused.Message == "" || refused.Status != status {
					t.Fatalf("%d %q became %+v", status, body, refused)
				}
				_, _ = refused.Cursor(), refused.Challenge()
			case err == nil && status >= 300:
				t.Fatalf("%d %q passes for success", status, body)
			}
		}
	})
}
