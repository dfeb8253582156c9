package apply

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/tofu"
	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/kernel/store/sqlite"
)

// TestMain lets the test binary be the supervisor, as the server's binary is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "tofu-run" {
		os.Exit(tofu.RunMain(context.Background(), os.Args[2:], nil))
	}
	os.Exit(m.Run())
}

// desk is a service with one tenant.
type desk struct {
	*testing.T
	*Service
	folder string
	tenant *cloud.Tenant
	woken  chan string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{T: t, folder: t.TempDir(), woken: make(chan string, 100)}
	s, err := sqlite.Open(t.Context(), filepath.Join(d.folder, "freehold.db"), sqlite.Options{Kinds: cloud.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	d.tenant = &cloud.Tenant{}
	d.tenant.Name = "prod"
	if err := s.Update(t.Context(), func(tx store.Tx) error { return cloud.Tenants.Create(tx, d.tenant) }); err != nil {
		t.Fatal(err)
	}
	d.open(s)
	t.Cleanup(func() { d.close() })
	return d
}

func (d *desk) config(s store.Store) Config {
	binary, err := tofu.Find(d.Context(), os.Getenv("FREEHOLD_TOFU"))
	if err != nil {
		d.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		d.Fatal(err)
	}
	root, err := secrets.Open(d.Context(), s, filepath.Join(d.folder, "root.key"))
	if err != nil {
		d.Fatal(err)
	}
	return Config{
		Store: s, Folder: filepath.Join(d.folder, "tofu"), Root: root, Tofu: binary,
		Self: []string{self, "tofu-run"}, KeepStates: 3, Grace: 5 * time.Second,
		Wake: func(tenant string) { d.woken <- tenant },
	}
}

func (d *desk) open(s store.Store) {
	d.Helper()
	service, err := New(d.Context(), d.config(s))
	if err != nil {
		d.Fatal(err)
	}
	d.Service = service
}

func (d *desk) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := d.Service.Close(ctx); err != nil {
		d.Error(err)
	}
}

// lend makes the record of a run that is going on, without the run, and answers its credential.
func (d *desk) lend(run string) string {
	d.Helper()
	credential := "credential of " + run
	err := d.Store.Update(d.Context(), func(tx store.Tx) error {
		rec, err := ReadRecord(tx, d.tenant.UID)
		if err != nil {
			return err
		}
		rec.Tenant = d.tenant.Name
		rec.Run = &Run{ID: run, Credential: digest(credential), Started: time.Now()}
		rec.Lock = reserved(rec.Run)
		return rec.Write(tx)
	})
	if err != nil {
		d.Fatal(err)
	}
	return credential
}

func (d *desk) record() *Record {
	d.Helper()
	rec, err := d.Record(d.Context(), d.tenant.UID)
	if err != nil {
		d.Fatal(err)
	}
	return rec
}

// envelope is what an encrypted state looks like from outside.
func envelope(serial int, lineage, text string) string {
	raw, _ := json.Marshal(map[string]any{
		"serial": serial, "lineage": lineage, "meta": map[string]any{"key_provider.pbkdf2.tenant": "e30="},
		"encrypted_data": []byte(text), "encryption_version": "v0",
	})
	return string(raw)
}

type call struct {
	method, path, password, body, md5 string
}

func (d *desk) call(c call) (int, string) {
	d.Helper()
	req := httptest.NewRequestWithContext(d.Context(), c.method, "/api/v1/tenants/prod/state"+c.path, strings.NewReader(c.body))
	if c.password != "" {
		req.SetBasicAuth("run", c.password)
	}
	if c.md5 != "" {
		req.Header.Set("Content-MD5", c.md5)
	}
	w := httptest.NewRecorder()
	d.StateHandler().ServeHTTP(w, req)
	body, _ := io.ReadAll(w.Result().Body)
	return w.Code, string(body)
}

func TestStateIsForTheLivingRunAlone(t *testing.T) {
	d := newDesk(t)
	if code, _ := d.call(call{method: "GET", password: "guess"}); code != http.StatusUnauthorized {
		t.Errorf("without a run: %d", code)
	}
	pw := d.lend("run-1")
	state := envelope(1, "l", "one")
	for name, c := range map[string]struct {
		call
		want int
	}{
		"no credential":  {call{method: "GET"}, 401},
		"another":        {call{method: "POST", password: "guess", body: state}, 401},
		"no state yet":   {call{method: "GET", password: pw}, 404},
		"plain state":    {call{method: "POST", path: "?ID=run-1", password: pw, body: `{"version":4,"serial":1,"lineage":"l","resources":[]}`}, 400},
		"plain beside":   {call{method: "POST", path: "?ID=run-1", password: pw, body: strings.Replace(state, `{`, `{"resources":[],`, 1)}, 400},
		"no JSON":        {call{method: "POST", path: "?ID=run-1", password: pw, body: "state"}, 400},
		"nothing":        {call{method: "POST", path: "?ID=run-1", password: pw}, 400},
		"wrong sum":      {call{method: "POST", path: "?ID=run-1", password: pw, body: state, md5: "AAAA"}, 400},
		"no lock":        {call{method: "POST", password: pw, body: state}, 423},
		"another's lock": {call{method: "POST", path: "?ID=run-0", password: pw, body: state}, 423},
		"other method":   {call{method: "PATCH", password: pw}, 405},
	} {
		if code, body := d.call(c.call); code != c.want {
			t.Errorf("%s: %d %s, not %d", name, code, body, c.want)
		}
	}
	if d.record().State != nil {
		t.Fatal("something was stored")
	}
	if code, body := d.call(call{method: "POST", path: "?ID=run-1", password: pw, body: state, md5: tofu.ContentMD5([]byte(state))}); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	if code, body := d.call(call{method: "GET", password: pw}); code != 200 || body != state {
		t.Errorf("%d %s", code, body)
	}
	next := d.lend("run-2")
	if code, _ := d.call(call{method: "GET", password: pw}); code != http.StatusUnauthorized {
		t.Errorf("the credential of a run that is over: %d", code)
	}
	reader, giveBack := d.lendReader(d.tenant.UID)
	if code, _ := d.call(call{method: "GET", password: reader}); code != 200 {
		t.Errorf("a reader: %d", code)
	}
	if code, _ := d.call(call{method: "POST", path: "?ID=run-2", password: reader, body: envelope(2, "l", "two")}); code != http.StatusForbidden {
		t.Errorf("a reader that writes: %d", code)
	}
	giveBack()
	if code, _ := d.call(call{method: "GET", password: reader}); code != 401 {
		t.Errorf("a reader that was given back: %d", code)
	}
	if code, _ := d.call(call{method: "GET", password: next}); code != 200 {
		t.Errorf("the next run: %d", code)
	}
}

func TestStateVersionsAreKeptAndNeverGoBack(t *testing.T) {
	d := newDesk(t)
	pw := d.lend("run-1")
	post := func(body string) int {
		code, _ := d.call(call{method: "POST", path: "?ID=run-1", password: pw, body: body})
		return code
	}
	for i := 1; i <= 5; i++ {
		if code := post(envelope(i, "l", "text")); code != 200 {
			t.Fatal(code)
		}
	}
	if code := post(envelope(5, "l", "text")); code != 200 {
		t.Errorf("the same again: %d", code)
	}
	if code := post(envelope(5, "l", "other text")); code != 409 {
		t.Errorf("another state with the same serial: %d", code)
	}
	if code := post(envelope(4, "l", "text")); code != 409 {
		t.Errorf("an older state: %d", code)
	}
	if code := post(envelope(9, "m", "text")); code != 409 {
		t.Errorf("another lineage: %d", code)
	}
	var kept []store.BlobInfo
	err := d.Store.View(t.Context(), func(r store.Reader) (err error) {
		kept, err = r.Blobs(blob(d.tenant.UID, "states/"))
		return err
	})
	if err != nil || len(kept) != 3 || d.record().State.Version != 5 {
		t.Errorf("kept %v, %v", kept, err)
	}
	if code, _ := d.call(call{method: "DELETE", path: "?ID=run-1", password: pw}); code != 200 {
		t.Error("delete", code)
	}
	if code, _ := d.call(call{method: "GET", password: pw}); code != 404 {
		t.Error("get after delete", code)
	}
	if code := post(envelope(1, "m", "text")); code != 200 {
		t.Errorf("a new state after a delete: %d", code)
	}
}

func TestLockTellsItsHolder(t *testing.T) {
	d := newDesk(t)
	pw := d.lend("run-1")
	lock := func(method, id string) (int, string) {
		return d.call(call{method: method, path: "/lock", password: pw, body: `{"ID":"` + id + `","Who":"` + id + `"}`})
	}
	if code, _ := lock("LOCK", "a"); code != 200 {
		t.Fatal(code)
	}
	if code, body := lock("LOCK", "b"); code != 423 || !strings.Contains(body, `"Who":"a"`) {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := lock("LOCK", "a"); code != 200 {
		t.Errorf("again by its holder: %d", code)
	}
	if code, body := lock("UNLOCK", "b"); code != 423 || !strings.Contains(body, `"Who":"a"`) {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := d.call(call{method: "POST", path: "?ID=run-1", password: pw, body: envelope(1, "l", "x")}); code != 423 {
		t.Errorf("a write beside the lock: %d", code)
	}
	if code, _ := lock("UNLOCK", "a"); code != 200 {
		t.Error(code)
	}
	if code, _ := lock("LOCK", "b"); code != 200 {
		t.Error(code)
	}
	if code, _ := d.call(call{method: "LOCK", path: "/lock", password: pw, body: "x"}); code != 400 {
		t.Error(code)
	}
	// The run dies without a word; its lock dies with it.
	if err := d.Settle(t.Context(), d.tenant.UID, "prod"); err != nil {
		t.Fatal(err)
	}
	rec := d.record()
	if rec.Lock != nil || rec.Run != nil || rec.Last.Result != string(tofu.Killed) {
		t.Errorf("after the run was settled: %+v", rec)
	}
}

// TestTofuSpeaksToTheBackendItself drives the handler with OpenTofu, as an operator with a run's credential would.
func TestTofuSpeaksToTheBackendItself(t *testing.T) {
	d := newDesk(t)
	pw := d.lend("run-1")
	work := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(work, "main.tf.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	enc, _ := json.Marshal(tofu.Encryption("a passphrase of some length"))
	url := d.url + "/api/v1/tenants/prod/state"
	run := func(encryption string, args ...string) (string, error) {
		cmd := exec.Command(d.Tofu.Path, args...)
		cmd.Dir = work
		cmd.Env = []string{
			"TF_CLI_CONFIG_FILE=" + filepath.Join(d.Folder, "tofurc"), "TF_HTTP_ADDRESS=" + url, "TF_HTTP_LOCK_ADDRESS=" + url + "/lock",
			"TF_HTTP_UNLOCK_ADDRESS=" + url + "/lock", "TF_HTTP_USERNAME=run", "TF_HTTP_PASSWORD=" + pw, "TF_ENCRYPTION=" + encryption,
			"TF_HTTP_RETRY_MAX=0", "HOME=" + work, "PATH=" + os.Getenv("PATH"),
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	write(`{"terraform":{"backend":{"http":{}}},"resource":{"terraform_data":{"a":{"input":"x"}}}}`)
	for _, args := range [][]string{{"init", "-input=false", "-no-color"}, {"apply", "-auto-approve", "-no-color"}, {"apply", "-auto-approve", "-no-color"}} {
		if out, err := run(string(enc), args...); err != nil {
			t.Fatalf("tofu %v: %v\n%s", args, err, out)
		}
	}
	rec := d.record()
	if rec.State == nil || rec.State.Version != 1 || rec.Lock.Taken {
		t.Errorf("record %+v, lock %+v", rec.State, rec.Lock)
	}
	write(`{"terraform":{"backend":{"http":{}}},"resource":{"terraform_data":{"a":{"input":"y"}}}}`)
	if out, err := run("", "apply", "-auto-approve", "-no-color"); err == nil {
		t.Errorf("an unencrypted state was taken or an encrypted one read: %s", out)
	}
	if d.record().State.Version != 1 {
		t.Error("the state was replaced")
	}
}

func TestEraseLeavesNothing(t *testing.T) {
	d := newDesk(t)
	pw := d.lend("run-1")
	d.call(call{method: "POST", path: "?ID=run-1", password: pw, body: envelope(1, "l", "x")})
	if err := d.Settle(t.Context(), d.tenant.UID, "prod"); err == nil {
		t.Log("a state that cannot be read back was settled")
	}
	for range 2 {
		if err := d.Erase(t.Context(), d.tenant.UID); err != nil {
			t.Fatal(err)
		}
	}
	err := d.Store.View(t.Context(), func(r store.Reader) error {
		left, err := r.Blobs(tenants)
		if len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.TenantSecrets(t.Context(), "prod"); !errors.Is(err, ErrNoSecrets) || !errors.Is(err, store.ErrNotFound) {
		t.Errorf("secrets: %v", err)
	}
	if _, err := d.TenantSecrets(t.Context(), "nobody"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("secrets of nobody: %v", err)
	}
}

func TestAPlaceThatIsGivenBackWakesAllWhoCanHaveOne(t *testing.T) {
	d := newDesk(t)
	d.MaxParallel = 2
	for _, tenant := range []string{"a", "b"} {
		if err := d.enter(tenant, tenant, false); err != nil {
			t.Fatal(err)
		}
	}
	for _, tenant := range []string{"c", "d", "e", "c"} {
		if err := d.enter(tenant, tenant, false); !errors.Is(err, ErrSaturated) {
			t.Fatal(err)
		}
	}
	if !d.Crowded() {
		t.Error("nobody waits")
	}
	d.Service.leave("a")
	// It was woken and does not come: its place is for others.
	d.Service.leave("b")
	d.Service.leave("b")
	close(d.woken)
	var woken []string
	for tenant := range d.woken {
		woken = append(woken, tenant)
	}
	if got := strings.Join(woken, " "); got != "c d e" || d.Crowded() {
		t.Errorf("woken %s", got)
	}
	d.woken = make(chan string, 100)
}
