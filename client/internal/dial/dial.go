// Package dial is how the clients of a Freehold server find it, and know that it is the right one.
package dial

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

// FingerprintError tells that the server showed another certificate than the pinned one.
type FingerprintError struct{ Want, Got string }

func (e *FingerprintError) Error() string {
	return fmt.Sprintf("the server's certificate has the fingerprint sha256:%s, expected sha256:%s", e.Got, e.Want)
}

// ParseServer checks a server's base URL and completes it: a missing scheme is https, or http for a loopback
// address.
func ParseServer(server string) (*url.URL, error) {
	if server == "" {
		return nil, errors.New("no server given")
	}
	full := server
	if !strings.Contains(full, "://") {
		full = "https://" + full
		if u, err := url.Parse(full); err == nil && IsLoopback(u.Hostname()) {
			full = "http" + strings.TrimPrefix(full, "https")
		}
	}
	u, err := url.Parse(full)
	if err != nil {
		return nil, fmt.Errorf("server %q is not a URL: %w", server, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("server %q is not of the form http(s)://HOST[:PORT]", server)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

// IsLoopback tells whether a host name or address is this computer's own.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// TLS is the configuration that trusts the authorities in caFile (the system's when it is empty), or, with a
// fingerprint, the one certificate that has it and nothing else.
func TLS(caFile, fingerprint string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate authority: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no PEM certificate", caFile)
		}
	}
	if fingerprint != "" {
		want, err := parseFingerprint(fingerprint)
		if err != nil {
			return nil, err
		}
		// The pinned certificate itself is the trust: names and authorities are not asked.
		t.InsecureSkipVerify = true
		t.VerifyConnection = func(s tls.ConnectionState) error {
			if got := sha256.Sum256(s.PeerCertificates[0].Raw); !bytes.Equal(got[:], want) {
				return &FingerprintError{Want: hex.EncodeToString(want), Got: hex.EncodeToString(got[:])}
			}
			return nil
		}
	}
	return t, nil
}

func parseFingerprint(s string) ([]byte, error) {
	s = strings.ToLower(s)
	s = strings.TrimPrefix(s, "sha256:")
	b, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
	if err != nil || len(b) != sha256.Size {
		return nil, errors.New("a fingerprint is the SHA-256 of the server's certificate: 64 hexadecimal digits")
	}
	return b, nil
}
