package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/cli/config"
)

func (a *app) kubeconfigCommand() *cobra.Command {
	var output, name string
	var merge, overwrite bool
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "kubeconfig TENANT",
		Short: "Get a kubeconfig for a tenant's cluster",
		Long: `Get a kubeconfig for a tenant's cluster, with a client certificate of your own.

Without -o and --merge it is printed. --merge adds it to your kubeconfig ($KUBECONFIG's first file, or ~/.kube/config)
and makes it the current context; other clusters, users and contexts there stay as they are.`,
		Example: "  freehold kubeconfig prod --merge && kubectl get nodes\n  freehold kubeconfig prod -o prod.kubeconfig --ttl 8h\n" +
			"  kubectl --kubeconfig <(freehold kubeconfig prod) get nodes",
		Args:              exactly("TENANT"),
		ValidArgsFunction: a.completeFirst(client.KindTenant),
		RunE: func(cmd *cobra.Command, args []string) error {
			if merge && output != "" {
				return &usageError{cmd.CommandPath(), errors.New("-o and --merge exclude each other")}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			data, err := c.Kubeconfig(cmd.Context(), args[0], client.ArtifactOptions{TTL: ttl})
			if err != nil {
				return err
			}
			if !merge {
				return a.writeArtifact(output, data)
			}
			path := a.kubeconfigPath()
			name = first(name, args[0])
			if err := mergeKubeconfig(path, data, name, overwrite); err != nil {
				return err
			}
			a.notef("Merged into %s; the current context is %q.\n", path, name)
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write it to, readable by you alone")
	cmd.Flags().BoolVar(&merge, "merge", false, "add it to your kubeconfig and make it the current context")
	cmd.Flags().StringVar(&name, "context-name", "", "with --merge: name of its context; default: the tenant's")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "with --merge: replace a context of that name although it is of another cluster")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long its certificate is valid; default: 24h")
	return cmd
}

func (a *app) talosconfigCommand() *cobra.Command {
	var output string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:               "talosconfig TENANT",
		Short:             "Get a talosconfig for a tenant's machines",
		Long:              "Get a talosconfig for a tenant's machines, with a client certificate of your own. Without -o it is printed.",
		Example:           "  freehold talosconfig prod -o talosconfig && talosctl --talosconfig talosconfig version",
		Args:              exactly("TENANT"),
		ValidArgsFunction: a.completeFirst(client.KindTenant),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			data, err := c.Talosconfig(cmd.Context(), args[0], client.ArtifactOptions{TTL: ttl})
			if err != nil {
				return err
			}
			return a.writeArtifact(output, data)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write it to, readable by you alone")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long its certificate is valid; default: 24h")
	return cmd
}

// writeArtifact prints a secret that was asked for, or writes it to a file with mode 0600.
func (a *app) writeArtifact(path string, data []byte) error {
	if path == "" || path == "-" {
		_, err := a.out.Write(data)
		return err
	}
	if err := config.WriteSecret(path, data); err != nil {
		return err
	}
	a.notef("Wrote %s.\n", path)
	return nil
}

func (a *app) kubeconfigPath() string {
	for _, p := range filepath.SplitList(a.Getenv("KUBECONFIG")) {
		if p != "" {
			return p
		}
	}
	return filepath.Join(a.Getenv("HOME"), ".kube", "config")
}

// mergeKubeconfig adds the one context of a kubeconfig to a file, under a name of its own, and makes it the current
// one. What else the file holds stays. A context of that name is replaced only if it leads to the same cluster.
func mergeKubeconfig(path string, data []byte, name string, overwrite bool) error {
	add, err := clientcmd.Load(data)
	if err != nil {
		return fmt.Errorf("the server's kubeconfig is damaged: %w", err)
	}
	from, ok := add.Contexts[add.CurrentContext]
	if !ok || add.Clusters[from.Cluster] == nil || add.AuthInfos[from.AuthInfo] == nil {
		return errors.New("the server's kubeconfig has no current context")
	}
	unlock, err := lockKubeconfig(path)
	if err != nil {
		return err
	}
	defer unlock()
	have, err := clientcmd.LoadFromFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		have = clientapi.NewConfig()
	case err != nil:
		return fmt.Errorf("%s is damaged, and was left alone: %w", path, err)
	}
	cluster, user := add.Clusters[from.Cluster], add.AuthInfos[from.AuthInfo]
	clusterName, userName := name, "freehold-"+name
	if old, ok := have.Contexts[name]; ok {
		if !overwrite && !sameCluster(have.Clusters[old.Cluster], cluster) {
			return fmt.Errorf("%s has a context %q of another cluster: choose another name with --context-name, or replace it with --overwrite", path, name)
		}
		if old.Cluster != "" {
			clusterName = old.Cluster
		}
		if old.AuthInfo != "" {
			userName = old.AuthInfo
		}
	}
	clusterName = freeName(clusterName, name, have, func(c *clientapi.Context) string { return c.Cluster }, func(n string) bool {
		_, taken := have.Clusters[n]
		return taken
	})
	userName = freeName(userName, name, have, func(c *clientapi.Context) string { return c.AuthInfo }, func(n string) bool {
		_, taken := have.AuthInfos[n]
		return taken
	})
	have.Clusters[clusterName], have.AuthInfos[userName] = cluster, user
	next := from.DeepCopy()
	next.Cluster, next.AuthInfo = clusterName, userName
	have.Contexts[name] = next
	have.CurrentContext = name
	out, err := clientcmd.Write(*have)
	if err != nil {
		return err
	}
	return config.WriteSecret(path, out)
}

// freeName is a name for a cluster or user that belongs to the context alone: no other one uses it, and it is not
// taken by something that no context uses.
func freeName(wish, context string, have *clientapi.Config, of func(*clientapi.Context) string, taken func(string) bool) string {
	usable := func(name string) bool {
		mine := false
		for other, c := range have.Contexts {
			if of(c) != name {
				continue
			}
			if other != context {
				return false
			}
			mine = true
		}
		return mine || !taken(name)
	}
	name := wish
	for n := 2; !usable(name); n++ {
		name = fmt.Sprintf("%s-%d", wish, n)
	}
	return name
}

func sameCluster(a, b *clientapi.Cluster) bool {
	return a == nil || a.Server == b.Server || len(a.CertificateAuthorityData) > 0 && string(a.CertificateAuthorityData) == string(b.CertificateAuthorityData)
}

// lockKubeconfig keeps kubectl and others from writing the file meanwhile, the way they do it among themselves.
func lockKubeconfig(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make the folder of the kubeconfig: %w", err)
	}
	lock := path + ".lock"
	for deadline := time.Now().Add(3 * time.Second); ; <-time.After(20 * time.Millisecond) {
		f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL, 0)
		if err == nil {
			_ = f.Close()
			return func() { _ = os.Remove(lock) }, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("lock the kubeconfig: %w", err)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s is being changed by another program; if none is running, remove %s", path, lock)
		}
	}
}
