package fleet

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"freehold.dev/freehold/client"
)

const (
	password = "only for a simulated fleet"
	// passwordHash is a bcrypt hash of some password: the operators use tokens.
	passwordHash = "$2a$12$R9h/cIPz0gi.URNNX3kh2OPST9/PgBkqquzi.Ss7KIUgO2t0jWMUW"
	host         = "freehold.test"
	base         = "https://" + host
)

// Server is a `freehold server` with TLS, as it is shipped. Its clients find it by name, whatever port it has after a
// restart.
type Server struct {
	tb      testing.TB
	bin     string
	dir     string
	cmd     *exec.Cmd
	address atomic.Pointer[string]
	tls     *tls.Config
}

// StartServer runs bin on an empty folder, which is removed at the end. The folder is made where the working directory
// is: a temporary folder may not be on a disk.
func StartServer(tb testing.TB, bin string) *Server {
	tb.Helper()
	dir, err := os.MkdirTemp(".", "fleet-*.test")
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{tb: tb, bin: bin, dir: dir}
	s.tls = s.certify()
	tb.Cleanup(func() {
		s.end(syscall.SIGTERM)
		_ = os.RemoveAll(dir)
	})
	s.Start()
	return s
}

// Start runs the server on the data that it has, and answers when it is ready.
func (s *Server) Start() {
	s.tb.Helper()
	s.cmd = exec.CommandContext(context.Background(), s.bin, "server", "--data", s.data(), "--listen", "127.0.0.1:0",
		"--tls-cert", s.certFile(), "--tls-key", s.keyFile(), "--log-level", "warn")
	s.cmd.Env = append(os.Environ(), "FREEHOLD_ADMIN_PASSWORD="+password)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.tb.Fatalf("the server is not ready: %v", err)
	}
	for word := range strings.FieldsSeq(line) {
		if api, ok := strings.CutPrefix(word, "api="); ok {
			u, err := url.Parse(api)
			if err != nil {
				s.tb.Fatal(err)
			}
			s.address.Store(&u.Host)
		}
	}
}

// Kill ends the server as a power cut would.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

func (s *Server) end(by os.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(by)
	_ = s.cmd.Wait()
	s.cmd = nil
}

// ResidentMiB is the server's resident memory.
func (s *Server) ResidentMiB() float64 { return s.proc("status", "VmRSS:") / 1024 }

// WrittenKiB is how much the server has written to disks since it started.
func (s *Server) WrittenKiB() float64 { return s.proc("io", "\nwrite_bytes:") / 1024 }

// CPU is the processor time that the server has used.
func (s *Server) CPU() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		s.tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	ticks := 0
	for _, field := range fields[11:13] { // in user mode, and in the kernel for it
		n, err := strconv.Atoi(field)
		if err != nil {
			s.tb.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func (s *Server) proc(file, field string) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.cmd.Process.Pid, file))
	if err != nil {
		s.tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), field)
	n, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		s.tb.Fatal(err)
	}
	return n
}

// Footprint describes the store's files: it is the same as long as nothing is written to them.
func (s *Server) Footprint() string {
	files, err := filepath.Glob(filepath.Join(s.data(), "*.db*"))
	if err != nil || len(files) == 0 {
		s.tb.Fatalf("the store has no files: %v", err)
	}
	var b strings.Builder
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			s.tb.Fatal(err)
		}
		if !strings.HasSuffix(f, "-shm") { // readers leave their marks in it
			fmt.Fprintln(&b, filepath.Base(f), info.Size(), info.ModTime().UnixNano())
		}
	}
	return b.String()
}

func (s *Server) data() string     { return filepath.Join(s.dir, "data") }
func (s *Server) certFile() string { return filepath.Join(s.dir, "tls.crt") }
func (s *Server) keyFile() string  { return filepath.Join(s.dir, "tls.key") }

// transport makes connections to wherever the server is.
func (s *Server) transport() *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, *s.address.Load())
		},
		TLSClientConfig: s.tls.Clone(), DisableCompression: true, TLSHandshakeTimeout: time.Minute,
	}
}

// Operators makes clients of n users who may edit, each with a token of its own.
func (s *Server) Operators(ctx context.Context, n int) []client.Hub {
	s.tb.Helper()
	t := s.transport()
	t.MaxIdleConnsPerHost, t.MaxConnsPerHost = 64, 64
	anyone, err := client.New(client.Config{Server: base, HTTPClient: &http.Client{Transport: t}, Timeout: time.Minute})
	if err != nil {
		s.tb.Fatal(err)
	}
	session, err := anyone.Login(ctx, "admin", password)
	if err != nil {
		s.tb.Fatal(err)
	}
	admin := anyone.WithToken(session.Token)
	operators := make([]client.Hub, n)
	for i := range operators {
		name := fmt.Sprintf("operator-%d", i)
		user := &client.User{Metadata: client.Metadata{Name: name}, Spec: client.UserSpec{Role: "edit", PasswordHash: passwordHash}}
		if _, err := client.Users(admin).Create(ctx, user); err != nil {
			s.tb.Fatal(err)
		}
		token, err := admin.CreateToken(ctx, name, &client.APIToken{Metadata: client.Metadata{Name: name}})
		if err != nil {
			s.tb.Fatal(err)
		}
		operators[i] = anyone.WithToken(token.Token).Hub()
	}
	return operators
}

// certify makes the server's certificate, and the configuration of clients that trust it.
func (s *Server) certify() *tls.Config {
	s.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{host},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		s.tb.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.tb.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for path, data := range map[string][]byte{
		s.certFile(): certPEM, s.keyFile(): pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			s.tb.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}
