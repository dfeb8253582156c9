package bench

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	benchPassword = "only for a benchmark"
	// passwordHash is a bcrypt hash of some password.
	passwordHash = "$2a$12$R9h/cIPz0gi.URNNX3kh2OPST9/PgBkqquzi.Ss7KIUgO2t0jWMUW"
)

// server is a `freehold server` with TLS, as it is shipped, and an administrator's session.
type server struct {
	tb     testing.TB
	cmd    *exec.Cmd
	url    string
	client *http.Client
	token  string
}

// startServer starts the binary of $FREEHOLD_BIN on an empty folder.
func startServer(tb testing.TB) *server {
	tb.Helper()
	bin := os.Getenv("FREEHOLD_BIN")
	if bin == "" {
		tb.Fatal("FREEHOLD_BIN names the folder of the binaries to measure; make bench sets it")
	}
	dir := folder(tb)
	certFile, keyFile, roots := selfSigned(tb, dir)
	s := &server{tb: tb, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: writers, MaxConnsPerHost: writers,
	}}}
	s.cmd = exec.Command(filepath.Join(bin, "freehold"), "server", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0",
		"--tls-cert", certFile, "--tls-key", keyFile, "--log-level", "warn")
	s.cmd.Env = append(os.Environ(), "FREEHOLD_ADMIN_PASSWORD="+benchPassword)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatalf("the server is not ready: %v", err)
	}
	for word := range strings.FieldsSeq(line) {
		if url, ok := strings.CutPrefix(word, "api="); ok {
			s.url = url
		}
	}
	var login struct{ Token string }
	s.post("/api/v1/auth/login", []byte(`{"username":"admin","password":"`+benchPassword+`"}`), http.StatusOK, &login)
	s.token = login.Token
	return s
}

func (s *server) post(path string, body []byte, want int, out any) {
	req, err := http.NewRequest(http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		s.tb.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	res, err := s.client.Do(req)
	if err != nil {
		s.tb.Error(err)
		return
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		s.tb.Errorf("POST %s: %s %v %s", path, res.Status, err, data)
		return
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			s.tb.Error(err)
		}
	}
}

// residentMiB is the server's resident memory.
func (s *server) residentMiB() float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		s.tb.Fatal(err)
	}
	return float64(kib) / 1024
}

// create makes one durable object of 1 KiB: a user whose password's hash is imported, on which no controller acts.
func (s *server) create(i int64) {
	s.post("/api/v1/users", fmt.Appendf(nil, `{"metadata":{"name":"u-%07d","annotations":{"pad":"%s"}},"spec":{"role":"view","passwordHash":"%s"}}`,
		i, strings.Repeat("x", bodySize-200), passwordHash), http.StatusCreated, nil)
}

// BenchmarkHTTPCreates measures durable creates through HTTPS, with authentication and validation, the client on the
// same machine. Baseline: a bare TLS server that reads the same bodies and answers them.
func BenchmarkHTTPCreates(b *testing.B) {
	for b.Loop() {
		s := startServer(b)
		idle := s.residentMiB()
		var next atomic.Int64
		got := drive(writers, func() { s.create(next.Add(1)) })

		echo := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.Copy(w, r.Body)
		}))
		echo.StartTLS()
		bare := &server{tb: b, url: echo.URL, client: echo.Client(), token: s.token}
		bare.client.Transport.(*http.Transport).MaxIdleConnsPerHost = writers
		base := drive(writers, func() { bare.create(next.Add(1)) })
		echo.Close()

		got.report(b, "creates")
		b.ReportMetric(got.rate/base.rate, "x-bare-tls")
		b.ReportMetric(idle, "idle-MiB")
	}
}

// BenchmarkServerMemory measures the server's resident memory with 100,000 objects of 1 KiB. Baseline: their bytes.
func BenchmarkServerMemory(b *testing.B) {
	const objects = 100_000
	for b.Loop() {
		s := startServer(b)
		idle := s.residentMiB()
		var next atomic.Int64
		for next.Load() < objects {
			drive(writers, func() {
				if i := next.Add(1); i <= objects {
					s.create(i)
				}
			})
		}
		full := s.residentMiB()
		b.ReportMetric(idle, "idle-MiB")
		b.ReportMetric(full, "full-MiB")
		b.ReportMetric(full*(1<<20)/(objects*bodySize), "x-bytes")
	}
}

func selfSigned(tb testing.TB, dir string) (certFile, keyFile string, roots *x509.CertPool) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, data := range map[string][]byte{certFile: certPEM, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return certFile, keyFile, roots
}
