package talos

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

// TalosconfigRequest asks for a client configuration of the Talos API.
type TalosconfigRequest struct {
	// Tenant names the context.
	Tenant string
	// Endpoints are addresses of control-plane machines; Nodes are whom commands go to by default.
	Endpoints, Nodes []string
	// TTL of the client certificate, from now.
	TTL time.Duration
	// Roles such as "os:reader"; none means "os:admin".
	Roles []string
}

// Talosconfig makes a talosconfig with one context.
func Talosconfig(s *Secrets, req TalosconfigRequest) ([]byte, error) {
	if req.Tenant == "" {
		return nil, errors.New("a talosconfig needs a tenant")
	}
	roles := role.MakeSet(role.Admin)
	if len(req.Roles) > 0 {
		var unknown []string
		if roles, unknown = role.Parse(req.Roles); len(unknown) > 0 {
			return nil, fmt.Errorf("there is no Talos role %s", strings.Join(unknown, ", "))
		}
	}
	ca, cert, key, err := s.credentials(req.TTL, roles)
	if err != nil {
		return nil, err
	}
	return WriteTalosconfig(req.Tenant, req.Endpoints, req.Nodes, ca, cert, key)
}

// WriteTalosconfig writes a talosconfig with one context from PEM credentials.
func WriteTalosconfig(name string, endpoints, nodes []string, ca, cert, key []byte) ([]byte, error) {
	cfg := clientconfig.NewConfig(name, endpoints, ca, &x509.PEMEncodedCertificateAndKey{Crt: cert, Key: key})
	cfg.Contexts[name].Nodes = nodes
	text, err := cfg.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode the talosconfig: %w", err)
	}
	return text, nil
}
