package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	taloscl "github.com/siderolabs/talos/pkg/machinery/client"
	talosconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// kube asks a cluster's Kubernetes API with a kubeconfig.
type kube struct {
	host string
	http *http.Client
}

func newKube(kubeconfig []byte) (*kube, error) {
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	cfg.Timeout = 10 * time.Second
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("use the kubeconfig: %w", err)
	}
	return &kube{strings.TrimRight(cfg.Host, "/"), c}, nil
}

func (k *kube) get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.host+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := k.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the cluster: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return "", fmt.Errorf("ask the cluster: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the cluster answers %s to GET %s: %s", resp.Status, path, clip(string(data), 200))
	}
	return string(data), nil
}

func (k *kube) version(ctx context.Context) (string, error) {
	data, err := k.get(ctx, "/version")
	if err != nil {
		return "", err
	}
	var v version.Info
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		return "", fmt.Errorf("the cluster's version: %w", err)
	}
	return v.GitVersion, nil
}

func (k *kube) nodes(ctx context.Context) ([]corev1.Node, error) {
	data, err := k.get(ctx, "/api/v1/nodes")
	if err != nil {
		return nil, err
	}
	var l corev1.NodeList
	if err := json.Unmarshal([]byte(data), &l); err != nil {
		return nil, fmt.Errorf("the cluster's nodes: %w", err)
	}
	return l.Items, nil
}

var nodeHeader = []string{"NAME", "STATUS", "ROLES", "AGE", "VERSION", "INTERNAL-IP"}

func nodeRow(n corev1.Node, now time.Time) []string {
	status := "NotReady"
	if nodeReady(n) {
		status = "Ready"
	}
	var roles []string
	for label := range n.Labels {
		if role, ok := strings.CutPrefix(label, "node-role.kubernetes.io/"); ok {
			roles = append(roles, role)
		}
	}
	slices.Sort(roles)
	address := ""
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && address == "" {
			address = a.Address
		}
	}
	return []string{n.Name, status, first(strings.Join(roles, ","), "<none>"), since(n.CreationTimestamp.Time, now), n.Status.NodeInfo.KubeletVersion, address}
}

func nodeReady(n corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// talosVersions asks every machine of a talosconfig for its version.
func talosVersions(ctx context.Context, data []byte) ([][]string, error) {
	cfg, err := talosconfig.FromBytes(data)
	if err != nil {
		return nil, fmt.Errorf("read the talosconfig: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	c, err := taloscl.New(ctx, taloscl.WithConfig(cfg))
	if err != nil {
		return nil, fmt.Errorf("use the talosconfig: %w", err)
	}
	defer func() { _ = c.Close() }()
	var rows [][]string
	for _, node := range cfg.Contexts[cfg.Context].Nodes {
		answer, err := c.Version(taloscl.WithNode(ctx, node))
		if err != nil {
			return nil, fmt.Errorf("ask machine %s for its version: %w", node, err)
		}
		for _, m := range answer.GetMessages() {
			rows = append(rows, []string{node, m.GetVersion().GetTag(), first(m.GetPlatform().GetName(), m.GetVersion().GetArch())})
		}
	}
	slices.SortFunc(rows, slices.Compare)
	return rows, nil
}
