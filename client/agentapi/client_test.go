package agentapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"freehold.dev/freehold/client/agentapi"
)

func secured(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestAPinnedCertificateIsTrustedAndNoOther(t *testing.T) {
	var protocols []string
	s := secured(t, func(w http.ResponseWriter, r *http.Request) {
		protocols = append(protocols, r.Proto)
		_, _ = w.Write([]byte(`{"commands":[]}`))
	})
	sum := sha256.Sum256(s.Certificate().Raw)
	c, err := agentapi.New(agentapi.Options{Server: s.URL, Fingerprint: "sha256:" + hex.EncodeToString(sum[:])})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Commands(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if len(protocols) != 1 || protocols[0] != "HTTP/2.0" {
		t.Errorf("spoken over %v", protocols)
	}

	sum[0]++
	other, err := agentapi.New(agentapi.Options{Server: s.URL, Fingerprint: hex.EncodeToString(sum[:])})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = other.Commands(t.Context(), 0)
	var connect *agentapi.ConnectError
	var pinned *agentapi.FingerprintError
	if !errors.As(err, &connect) || !connect.Untrusted() || !errors.As(err, &pinned) {
		t.Errorf("%v", err)
	}

	stranger, err := agentapi.New(agentapi.Options{Server: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, err := stranger.Commands(t.Context(), 0); !errors.As(err, &connect) || !connect.Untrusted() {
		t.Errorf("%v", err)
	}
	if len(protocols) != 1 {
		t.Error("a client spoke to a server that it does not trust")
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for name, o := range map[string]agentapi.Options{
		"no server":      {},
		"no URL":         {Server: "ftp://x"},
		"no CA file":     {Server: "https://x", CAFile: "/does/not/exist"},
		"no fingerprint": {Server: "https://x", Fingerprint: "abc"},
	} {
		if _, err := agentapi.New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestAHubThatIsAwayIsAConnectError(t *testing.T) {
	s := secured(t, func(http.ResponseWriter, *http.Request) {})
	url := s.URL
	s.Close()
	c, err := agentapi.New(agentapi.Options{Server: url})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Report(t.Context(), agentapi.Report{})
	var connect *agentapi.ConnectError
	if !errors.As(err, &connect) || connect.Untrusted() {
		t.Errorf("%v", err)
	}
}

func TestAHubThatDoesNotAnswerIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	s := secured(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	c, err := agentapi.New(agentapi.Options{Server: s.URL, Timeout: 50 * time.Millisecond, HTTPClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	var connect *agentapi.ConnectError
	if _, err := c.Commands(t.Context(), 10*time.Millisecond); !errors.As(err, &connect) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("the agent stops")
	cancel(stopped)
	if _, err := c.Commands(ctx, 0); !errors.Is(err, stopped) {
		t.Errorf("%v", err)
	}
}

func TestTheSessionIsSentWhereItIsNeededOnly(t *testing.T) {
	seen := map[string]string{}
	s := secured(t, func(w http.ResponseWriter, r *http.Request) {
		seen[r.URL.Path] = r.Header.Get("Authorization")
		_, _ = w.Write([]byte(`{"session_token":"new"}`))
	})
	c, err := agentapi.New(agentapi.Options{Server: s.URL, HTTPClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	c.SetSessionToken("old")
	if _, err := c.Enrol(t.Context(), agentapi.EnrolRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := c.AnswerRequest(t.Context(), "a/b", agentapi.LogAnswer{}); err != nil {
		t.Fatal(err)
	}
	if seen["/agent/v1/enroll"] != "" || seen["/agent/v1/requests/a/b"] != "Bearer new" {
		t.Errorf("%v", seen)
	}
}
