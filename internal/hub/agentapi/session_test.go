package agentapi_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	protocol "freehold.dev/freehold/client/agentapi"
	"freehold.dev/freehold/internal/audit"
	"freehold.dev/freehold/internal/hub"
	"freehold.dev/freehold/internal/hub/agentapi"
	"freehold.dev/freehold/internal/identity"
	identityapi "freehold.dev/freehold/internal/identity/api"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

func TestARenewalNeedsTheNodesKey(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	a.report(false)

	thief := a.clone() // has the refresh credential, not the key
	_, thief.key, _ = ed25519.GenerateKey(nil)
	wantCode(t, thief.renew(), http.StatusUnauthorized, protocol.CodeUnauthorized)
	if len(w.audited) != 1 || w.audited[0].Action != "renew-agent-session" || w.audited[0].Outcome != audit.Rejected || w.audited[0].Resource() != "node/node-a" {
		t.Errorf("audited: %+v", w.audited)
	}
}

func TestARenewalByTheSameBootWritesNothing(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	before := w.store.updates.Load()
	for range 5 {
		if err := a.renew(); err != nil {
			t.Fatal(err)
		}
	}
	if after := w.store.updates.Load(); after != before {
		t.Errorf("%d transactions", after-before)
	}
}

// session asks by hand, without the client's help.
func (w *world) session(in protocol.SessionRequest) (int, map[string]any) {
	w.t.Helper()
	return w.raw("POST", "/agent/v1/session", "", encode(w.t, in))
}

func challengeOf(t *testing.T, body map[string]any) string {
	t.Helper()
	details, _ := body["details"].(map[string]any)
	challenge, _ := details["challenge"].(string)
	if body["code"] != protocol.CodeChallenge || challenge == "" {
		t.Fatalf("no challenge: %v", body)
	}
	return challenge
}

func TestChallengesAreForOneBootOfOneNodeAndForAShortTime(t *testing.T) {
	w := newWorld(t)
	a, b := w.online("node-a"), w.online("node-b")
	sign := func(of *agent, in protocol.SessionRequest, challenge string) protocol.SessionRequest {
		in.Challenge = challenge
		in.Signature = base64.StdEncoding.EncodeToString(ed25519.Sign(of.key, protocol.SessionStatement(in.NodeID, in.BootID, challenge)))
		return in
	}
	_, body := w.session(a.sessionRequest())
	challenge := challengeOf(t, body)

	other := a.sessionRequest()
	other.BootID, other.BootSeq = "boot-2", 2
	if status, body := w.session(sign(a, other, challenge)); status != 401 || body["code"] != protocol.CodeChallenge {
		t.Errorf("another boot's challenge: %d %v", status, body)
	}
	if status, body := w.session(sign(b, b.sessionRequest(), challenge)); status != 401 || body["code"] != protocol.CodeChallenge {
		t.Errorf("another node's challenge: %d %v", status, body)
	}
	if status, body := w.session(sign(a, a.sessionRequest(), challenge[:len(challenge)-2]+"AA")); status != 401 || body["code"] != protocol.CodeChallenge {
		t.Errorf("a forged challenge: %d %v", status, body)
	}
	bad := sign(a, a.sessionRequest(), challenge)
	bad.Signature = base64.StdEncoding.EncodeToString(make([]byte, ed25519.SignatureSize))
	if status, body := w.session(bad); status != 401 || body["code"] != protocol.CodeUnauthorized {
		t.Errorf("a forged signature: %d %v", status, body)
	}
	if status, body := w.session(sign(a, a.sessionRequest(), challenge)); status != 200 {
		t.Errorf("the right answer: %d %v", status, body)
	}
	w.clock.advance(2 * time.Minute)
	if status, body := w.session(sign(a, a.sessionRequest(), challenge)); status != 401 || body["code"] != protocol.CodeChallenge {
		t.Errorf("a late answer: %d %v", status, body)
	}
}

func TestForgedSignaturesAreLimitedByAddress(t *testing.T) {
	w := newWorld(t, func(c *agentapi.Config) { c.Limits = agentapi.Limits{Failures: 2, Every: time.Minute} })
	a := w.online("node-a")
	thief := a.clone()
	_, thief.key, _ = ed25519.GenerateKey(nil)
	for range 2 {
		wantCode(t, thief.renew(), http.StatusUnauthorized, protocol.CodeUnauthorized)
	}
	wantCode(t, thief.renew(), http.StatusTooManyRequests, protocol.CodeRateLimited)
	// The node itself, behind the same address, is not held up.
	if err := a.renew(); err != nil {
		t.Error(err)
	}
}

func TestANodesCredentialsAreNoOthers(t *testing.T) {
	w := newWorld(t)
	a, b := w.online("node-a"), w.online("node-b")
	mixed := b.clone()
	mixed.refresh = a.refresh
	wantCode(t, mixed.renew(), http.StatusUnauthorized, protocol.CodeUnauthorized)

	// What node-a says with its session is said of node-a, whatever is in it.
	version := w.publish(content(1))
	w.declare(mutation("node-b", "orders", hub.Running, version))
	if got := a.poll().Commands; len(got) != 0 {
		t.Errorf("node-a got node-b's commands: %+v", got)
	}
	_, err := a.client.Config(t.Context(), version)
	wantCode(t, err, http.StatusNotFound, protocol.CodeNotFound)
	command := b.poll().Commands[0]
	r := a.next(false)
	r.Attempts = []protocol.AttemptReport{{AttemptID: command.AttemptID, State: hub.Succeeded}}
	a.send(r)
	if got := w.intent(command.IntentID).Attempt.State; got != hub.Dispatched {
		t.Errorf("node-a ended node-b's attempt: it is %s", got)
	}
	// Nor does what it claims to run open what was published for others.
	a.report(false, running("mine", 1, version))
	_, err = a.client.Config(t.Context(), version)
	wantCode(t, err, http.StatusNotFound, protocol.CodeNotFound)
	if c, err := b.client.Config(t.Context(), version); err != nil || c.Content != content(1) {
		t.Errorf("node-b cannot read its own: %+v, %v", c, err)
	}
}

func TestSessionsExpire(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	w.clock.advance(hub.SessionTTL)
	_, err := a.client.Report(t.Context(), a.next(false))
	wantCode(t, err, http.StatusUnauthorized, protocol.CodeSessionExpired)
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	a.report(false)
}

func TestForeignTokensAreNoSessions(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	n := w.node("node-a")
	now := w.clock.Now()
	claims := func(change func(jwt.MapClaims)) jwt.MapClaims {
		c := jwt.MapClaims{
			"iss": "freehold-hub", "aud": []string{"freehold-agent"}, "sub": "node-a", "uid": n.UID, "crd": n.Status.Credential.ID,
			"bid": a.boot.ID, "bsq": a.boot.Seq, "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
		}
		change(c)
		return c
	}
	sign := func(method jwt.SigningMethod, key any, c jwt.MapClaims) string {
		text, err := jwt.NewWithClaims(method, c).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	same := func(jwt.MapClaims) {}
	report := encode(t, a.next(false))
	if status, body := w.raw("POST", "/agent/v1/reports", sign(jwt.SigningMethodHS256, testKey, claims(same)), report); status != 200 {
		t.Fatalf("the test's own session is refused: %d %v", status, body)
	}
	for name, token := range map[string]string{
		"none":              "",
		"nonsense":          "abc",
		"long":              strings.Repeat("x", 100_000),
		"another key":       sign(jwt.SigningMethodHS256, slices.Repeat([]byte{8}, 32), claims(same)),
		"no signature":      sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims(same)),
		"another algorithm": sign(jwt.SigningMethodHS512, testKey, claims(same)),
		"another audience":  sign(jwt.SigningMethodHS256, testKey, claims(func(c jwt.MapClaims) { c["aud"] = []string{"freehold"} })),
		"another issuer":    sign(jwt.SigningMethodHS256, testKey, claims(func(c jwt.MapClaims) { c["iss"] = "freehold" })),
		"no expiry":         sign(jwt.SigningMethodHS256, testKey, claims(func(c jwt.MapClaims) { delete(c, "exp") })),
		"no boot":           sign(jwt.SigningMethodHS256, testKey, claims(func(c jwt.MapClaims) { delete(c, "bid") })),
		"no node":           sign(jwt.SigningMethodHS256, testKey, claims(func(c jwt.MapClaims) { delete(c, "sub") })),
		"a refresh":         a.refresh,
	} {
		for _, r := range [][3]string{
			{"POST", "/agent/v1/reports", encode(t, a.next(false))}, {"GET", "/agent/v1/commands", ""},
			{"GET", "/agent/v1/config-versions/cfg-1", ""}, {"POST", "/agent/v1/requests/x", `{"lines":[],"next":0}`},
		} {
			if status, body := w.raw(r[0], r[1], token, r[2]); status != 401 || body["code"] != "unauthorized" || body["correlation_id"] == "" {
				t.Errorf("%s, %s: %d %v", name, r[1], status, body)
			}
		}
	}
}

// Operators' tokens and nodes' sessions may even be signed with one key: neither is taken for the other.
func TestNoOperatorsTokenWorksHereNorTheReverse(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	kept, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "users.db"), sqlite.Options{Kinds: identity.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	users, err := identity.New(identity.Config{Store: kept, Logger: w.config.Logger, SigningKey: testKey, BcryptCost: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := users.Bootstrap(t.Context(), "correct horse battery"); err != nil {
		t.Fatal(err)
	}
	_, admin, err := users.CreateToken(t.Context(), identity.TokenInput{User: "admin", Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	if status, body := w.raw("GET", "/agent/v1/commands", admin, ""); status != 401 || body["code"] != "unauthorized" {
		t.Errorf("an administrator's token: %d %v", status, body)
	}

	session, err := a.client.Session(t.Context(), a.sessionRequest(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	who := identityapi.New(users)
	for _, token := range []string{session.SessionToken, a.refresh} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "/api/v1/nodes", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		_, err = who.Authenticate(r)
		var p *rest.Problem
		if !errors.As(err, &p) || p.Status != 401 {
			t.Errorf("a node's credential passes for an operator's: %v", err)
		}
	}
}

func conflictOf(n *hub.Node) *hub.Condition {
	for i, c := range n.Status.Conditions {
		if c.Type == hub.ConditionIdentityConflict {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func TestTheNewestBootSpeaksForTheNode(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	old := a.clone()
	if err := old.renew(); err != nil {
		t.Fatal(err)
	}
	a.reboot("boot-2")
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	a.report(true)
	_, err := old.client.Report(t.Context(), old.next(false))
	wantCode(t, err, http.StatusConflict, protocol.CodeSessionSuperseded)
	_, err = old.client.Commands(t.Context(), 0)
	wantCode(t, err, http.StatusConflict, protocol.CodeSessionSuperseded)
	if conflictOf(w.node("node-a")) != nil {
		t.Error("a request of a boot that ended is not a sign of a second agent")
	}
}

func TestAnOlderBootThatLivesOnIsNoticed(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	a.reboot("boot-2")
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	a.report(true)
	copied := a.clone()
	copied.reboot("boot-of-the-copy") // started later from the same disk: its counter is the higher one
	if err := copied.renew(); err != nil {
		t.Fatal(err)
	}
	copied.report(true)
	e := wantCode(t, a.renew(), http.StatusConflict, protocol.CodeSessionSuperseded)
	if !strings.Contains(e.Message, "boot") {
		t.Error(e.Message)
	}
	c := conflictOf(w.node("node-a"))
	if c == nil || !strings.Contains(c.Message, "127.0.0.1") {
		t.Fatalf("the node's conditions are %+v", w.node("node-a").Status.Conditions)
	}
	page, err := audit.List(t.Context(), w.store, audit.Filter{Principal: "node:node-a", Outcome: audit.Rejected}, 0, 10)
	if err != nil || page.Total != 1 || page.Entries[0].Code != protocol.CodeIdentityConflict {
		t.Errorf("audited: %+v, %v", page, err)
	}
}

func TestACopyWithTheSameBootNumberIsNoticed(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	copied := a.clone()
	a.reboot("boot-2")
	copied.reboot("boot-2-of-the-copy")
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, copied.renew(), http.StatusConflict, protocol.CodeIdentityConflict)
	if conflictOf(w.node("node-a")) == nil {
		t.Error("the node's record does not tell")
	}
	a.report(true)

	// One of the two is enrolled anew: the conflict is over.
	token, e := w.ledger.NewEnrolment(0)
	w.update(func(tx store.Tx) error {
		_, err := w.ledger.RenewEnrolment(tx, "node-a", e)
		return err
	})
	_, a.key, _ = ed25519.GenerateKey(nil)
	a.mustEnrol(token)
	if c := conflictOf(w.node("node-a")); c != nil {
		t.Errorf("the conflict is still noted: %+v", c)
	}
}

func TestAConflictThatIsRepeatedDoesNotFillTheStore(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	copied := a.clone()
	copied.boot.ID = "boot-of-the-copy"
	wantCode(t, copied.renew(), http.StatusConflict, protocol.CodeIdentityConflict)
	before := w.revision()
	for range 20 {
		wantCode(t, copied.renew(), http.StatusConflict, protocol.CodeIdentityConflict)
	}
	if after := w.revision(); after != before {
		t.Errorf("%d changes", after-before)
	}
}

// The records were restored from a backup that is older than the session.
func TestASessionThatTheHubForgotIsRenewed(t *testing.T) {
	w := newWorld(t)
	a := w.online("node-a")
	backup := w.node("node-a")
	a.reboot("boot-2")
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	w.update(func(tx store.Tx) error {
		n, err := hub.Nodes.Get(tx, "node-a")
		if err != nil {
			return err
		}
		n.Status = backup.Status
		return hub.Nodes.Update(tx, n)
	})
	_, err := a.client.Commands(t.Context(), 0)
	wantCode(t, err, http.StatusUnauthorized, protocol.CodeSessionExpired)
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	a.report(true)
}
