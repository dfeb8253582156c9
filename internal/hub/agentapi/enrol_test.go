package agentapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/agentapi"
	"freehold.dev/freehold/internal/hub/problem"
	"freehold.dev/freehold/internal/kernel/store"
)

func TestEnrolmentMakesTheNodeKnownWithItsKey(t *testing.T) {
	w := newWorld(t)
	a := w.newAgent("node-a")
	token := w.register("node-a")
	out, err := a.client.Enrol(t.Context(), a.enrolment(token))
	if err != nil {
		t.Fatal(err)
	}
	if out.ExpiresIn != int(hub.SessionTTL/time.Second) || !out.ExpiresAt.Equal(w.clock.Now().Add(hub.SessionTTL)) || out.RefreshCredential == "" {
		t.Errorf("%+v", out)
	}
	n := w.node("node-a")
	if st := n.Status; st.Credential == nil || st.Boot != a.boot || st.AgentVersion != "1.2.3" || st.AgentLabels["zone"] != "a" || st.Capabilities[0] != "process" {
		t.Errorf("the record is %+v", n.Status)
	}
	a.report(true)
	if got := w.node("node-a").Status.Presence; got != hub.PresenceOnline {
		t.Errorf("after its first report the node is %s", got)
	}
	page, err := audit.List(t.Context(), w.store, audit.Filter{Resource: "node/node-a"}, 0, 10)
	if err != nil || page.Total != 1 || page.Entries[0].Action != "enrol-agent" || page.Entries[0].Outcome != audit.Accepted || page.Entries[0].Principal != "node:node-a" {
		t.Errorf("audited: %+v, %v", page, err)
	}
}

func TestAnEnrolmentMayBeRepeatedWithTheSameKeyAndNoOther(t *testing.T) {
	w := newWorld(t)
	token := w.register("node-a")
	a, thief := w.newAgent("node-a"), w.newAgent("node-a")
	a.mustEnrol(token)
	first, refresh := w.node("node-a").Status.Credential.ID, a.refresh
	a.mustEnrol(token) // the answer was lost
	if again := w.node("node-a").Status.Credential.ID; again != first {
		t.Errorf("the repeated enrolment made another credential")
	}
	a.refresh = refresh
	if err := a.renew(); err != nil {
		t.Errorf("the first answer's credential no longer works: %v", err)
	}
	_, err := thief.client.Enrol(t.Context(), thief.enrolment(token))
	wantCode(t, err, http.StatusForbidden, protocol.CodeEnrolmentRefused)
	if len(w.audited) != 1 || w.audited[0].Outcome != audit.Rejected || w.audited[0].Code != protocol.CodeEnrolmentRefused || w.audited[0].Address == "" {
		t.Errorf("audited: %+v", w.audited)
	}
}

func TestEnrolmentTokensAreRefused(t *testing.T) {
	w := newWorld(t)
	token := w.register("node-a")
	w.register("node-b")
	for name, c := range map[string]struct{ node, token string }{
		"another node's": {"node-b", token},
		"unknown node":   {"node-c", token},
		"wrong":          {"node-a", strings.Repeat("x", len(token))},
		"empty":          {"node-a", ""},
	} {
		a := w.newAgent(c.node)
		_, err := a.client.Enrol(t.Context(), a.enrolment(c.token))
		if !protocol.HasCode(err, protocol.CodeEnrolmentRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.clock.advance(hub.EnrolmentTTL)
	a := w.newAgent("node-a")
	_, err := a.client.Enrol(t.Context(), a.enrolment(token))
	wantCode(t, err, http.StatusForbidden, protocol.CodeEnrolmentRefused)
}

func TestEnrolmentsAtOnceWithDifferentKeysLetOneIn(t *testing.T) {
	w := newWorld(t)
	token := w.register("node-a")
	const n = 8
	var wg sync.WaitGroup
	won := make(chan *agent, n)
	for range n {
		a := w.newAgent("node-a")
		wg.Go(func() {
			if _, err := a.client.Enrol(t.Context(), a.enrolment(token)); err == nil {
				won <- a
			} else if !protocol.HasCode(err, protocol.CodeEnrolmentRefused) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d agents were enrolled with one token", len(won))
	}
	a := <-won
	a.report(true)
}

func TestAnUnknownProtocolIsToldWhatToInstall(t *testing.T) {
	w := newWorld(t)
	a := w.newAgent("node-a")
	for _, version := range []int{0, protocol.ProtocolVersion + 1} {
		in := a.enrolment(w.register("node-" + string(rune('b'+version))))
		in.ProtocolVersion = version
		_, err := a.client.Enrol(t.Context(), in)
		if e := wantCode(t, err, http.StatusUnprocessableEntity, protocol.CodeProtocolUnsupported); !strings.Contains(e.Message, "freehold-agent 1.2.3") {
			t.Errorf("the message is %q", e.Message)
		}
	}
}

func TestEnrolmentsAreChecked(t *testing.T) {
	w := newWorld(t)
	token := w.register("node-a")
	for name, change := range map[string]func(*protocol.EnrolRequest){
		"node_id":      func(r *protocol.EnrolRequest) { r.NodeID = "../x" },
		"boot_id":      func(r *protocol.EnrolRequest) { r.BootID = "" },
		"boot_seq":     func(r *protocol.EnrolRequest) { r.BootSeq = 0 },
		"public_key":   func(r *protocol.EnrolRequest) { r.PublicKey = "AAAA" },
		"capabilities": func(r *protocol.EnrolRequest) { r.Capabilities = make([]string, 1000) },
		"labels":       func(r *protocol.EnrolRequest) { r.Labels = map[string]string{"": "x"} },
	} {
		a := w.newAgent("node-a")
		in := a.enrolment(token)
		change(&in)
		_, err := a.client.Enrol(t.Context(), in)
		if e := wantCode(t, err, http.StatusUnprocessableEntity, protocol.CodeValidationFailed); !strings.Contains(e.Message, name) {
			t.Errorf("%s: the message is %q", name, e.Message)
		}
	}
}

func TestFailedEnrolmentsAreLimitedByAddress(t *testing.T) {
	w := newWorld(t, func(c *agentapi.Config) { c.Limits = agentapi.Limits{Failures: 3, Every: time.Minute} })
	token := w.register("node-a")
	a := w.newAgent("node-a")
	for range 10 { // successes cost nothing
		a.mustEnrol(token)
	}
	for range 3 {
		_, err := a.client.Enrol(t.Context(), a.enrolment("wrong"))
		wantCode(t, err, http.StatusForbidden, protocol.CodeEnrolmentRefused)
	}
	_, err := a.client.Enrol(t.Context(), a.enrolment(token))
	if e := wantCode(t, err, http.StatusTooManyRequests, protocol.CodeRateLimited); e.RetryAfter != time.Minute {
		t.Errorf("retry after %v", e.RetryAfter)
	}
	w.clock.advance(time.Minute)
	a.mustEnrol(token)
}

func TestManyAgentsBehindOneAddressEnrolAtOnce(t *testing.T) {
	w := newWorld(t, func(c *agentapi.Config) { c.Limits = agentapi.Limits{Failures: 1, Every: time.Minute} })
	var wg sync.WaitGroup
	for i := range 30 {
		a := w.newAgent(fmt.Sprintf("node-%d", i))
		token := w.register(a.name)
		wg.Go(func() {
			if _, err := a.client.Enrol(t.Context(), a.enrolment(token)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestANewEnrolmentEndsWhatTheOldOneGave(t *testing.T) {
	w := newWorld(t)
	old := w.online("node-a")
	token, e := w.ledger.NewEnrolment(0)
	w.update(func(tx store.Tx) error {
		_, err := w.ledger.RenewEnrolment(tx, "node-a", e)
		return err
	})
	old.report(false) // a token that was not used yet ends nothing
	fresh := w.newAgent("node-a")
	fresh.boot.ID = "boot-of-the-other-disk"
	fresh.mustEnrol(token)
	_, err := old.client.Report(t.Context(), old.next(false))
	wantCode(t, err, http.StatusUnauthorized, protocol.CodeNotEnrolled)
	wantCode(t, old.renew(), http.StatusUnauthorized, protocol.CodeNotEnrolled)
	_, err = old.client.Commands(t.Context(), 0)
	wantCode(t, err, http.StatusUnauthorized, protocol.CodeNotEnrolled)
	fresh.report(true)
}

func TestANodeThatIsBeingDeletedTakesNoEnrolment(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	version := w.publish(content(1))
	w.declare(mutation("node-a", "orders", hub.Running, version))
	var token string
	w.update(func(tx store.Tx) error {
		var e hub.Enrolment
		token, e = w.ledger.NewEnrolment(0)
		if _, err := w.ledger.RenewEnrolment(tx, "node-a", e); err != nil {
			return err
		}
		gone, err := w.ledger.DeleteNode(tx, ledgerDeletion("node-a"))
		if gone {
			t.Error("the node had a stream to stop")
		}
		return err
	})
	b := w.newAgent("node-a")
	_, err := b.client.Enrol(t.Context(), b.enrolment(token))
	wantCode(t, err, http.StatusConflict, problem.CodeNodeDeleting)
	if len(w.audited) != 1 || w.audited[0].Action != "enrol-agent" || w.audited[0].Code != problem.CodeNodeDeleting || w.audited[0].Principal != "" {
		t.Errorf("audited: %+v", w.audited)
	}
	a.report(false)
}

func TestADeletedNodeIsNotEnrolledAnyMore(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	w.update(func(tx store.Tx) error {
		_, err := w.ledger.DeleteNode(tx, ledgerDeletion("node-a"))
		return err
	})
	_, err := a.client.Report(t.Context(), a.next(false))
	wantCode(t, err, http.StatusUnauthorized, protocol.CodeNotEnrolled)
	wantCode(t, a.renew(), http.StatusUnauthorized, protocol.CodeNotEnrolled)

	// A new node of the same name is another one, and what the old agent sends does not disturb it.
	b := w.online("node-a")
	w.presence.Poll("node-a", w.node("node-a").UID)
	_, err = a.client.Commands(t.Context(), 0)
	wantCode(t, err, http.StatusUnauthorized, protocol.CodeNotEnrolled)
	if _, known := w.presence.LastReport("node-a"); !known {
		t.Error("the old agent made the hub forget the new one's reports")
	}
	b.report(false)
}
