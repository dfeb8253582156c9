// Package kubeprobe asks a tenant's Kubernetes API whether it is there and ready.
package kubeprobe

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Target is a Kubernetes API and how to verify and be verified by it.
type Target struct {
	// Endpoint is an https URL without a path.
	Endpoint string
	// CA, Certificate and Key are PEM.
	CA, Certificate, Key []byte
}

// Result of a probe.
type Result struct {
	// Available: something that holds a certificate of the tenant's CA answers HTTP at the endpoint.
	Available bool
	// Ready: /readyz says ok.
	Ready bool
	// Message says what is missing, in plain words; empty when Ready.
	Message string
}

// maxBody is how much of an answer is read.
const maxBody = 64 << 10

// Probe asks /readyz. It ends with ctx, and after timeout.
func Probe(ctx context.Context, t Target, timeout time.Duration) Result {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pair, err := tls.X509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return Result{Message: "the Kubernetes client certificate cannot be read: " + err.Error()}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(t.CA) {
		return Result{Message: "the Kubernetes CA holds no certificate"}
	}
	transport := &http.Transport{
		Proxy:           http.ProxyFromEnvironment,
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	base := strings.TrimSuffix(t.Endpoint, "/")

	status, body, err := get(ctx, client, base+"/readyz")
	if err != nil {
		return Result{Message: fmt.Sprintf("no answer from %s: %s", t.Endpoint, explain(err))}
	}
	if status != http.StatusOK {
		return Result{Available: true, Message: notReady(status, body)}
	}
	return Result{Available: true, Ready: true}
}

func get(ctx context.Context, c *http.Client, url string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	return resp.StatusCode, body, err
}

func explain(err error) string {
	var (
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
	)
	switch {
	case errors.As(err, &unknown):
		return "its certificate is not from this tenant's CA; something else listens there"
	case errors.As(err, &hostname):
		return fmt.Sprintf("its certificate is not valid for this name (%v)", hostname)
	case errors.Is(err, context.DeadlineExceeded):
		return "it did not answer in time"
	}
	return err.Error()
}

// notReady names the checks that failed: /readyz lists one a line, failed ones with "[-]".
func notReady(status int, body []byte) string {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Sprintf("the Kubernetes API does not accept the tenant's client certificate (%d)", status)
	}
	var failed []string
	for lines := bufio.NewScanner(strings.NewReader(string(body))); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "[-]"); ok {
			name, _, _ = strings.Cut(name, " ")
			failed = append(failed, name)
		}
	}
	if len(failed) > 0 {
		return fmt.Sprintf("the Kubernetes API is not ready (%d): %s", status, strings.Join(failed, ", "))
	}
	return fmt.Sprintf("the Kubernetes API is not ready (%d)", status)
}
