package provider_test

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"freehold.dev/freehold/internal/cloud/talos/provider"
)

func schemas(t *testing.T) *tfprotov6.GetProviderSchemaResponse {
	t.Helper()
	server := providerserver.NewProtocol6(provider.New("test")())()
	resp, err := server.GetProviderSchema(context.Background(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range resp.Diagnostics {
		t.Fatalf("%s: %s", d.Summary, d.Detail)
	}
	return resp
}

// shape writes a schema down: one line an attribute, with its flags.
func shape(prefix string, attributes []*tfprotov6.SchemaAttribute) (lines []string) {
	for _, a := range attributes {
		line := prefix + a.Name
		for _, flag := range []struct {
			on   bool
			name string
		}{{a.Required, "required"}, {a.Optional, "optional"}, {a.Computed, "computed"}, {a.Sensitive, "sensitive"}, {a.Deprecated, "deprecated"}} {
			if flag.on {
				line += " " + flag.name
			}
		}
		if a.NestedType != nil {
			lines = append(lines, line)
			lines = append(lines, shape(prefix+a.Name+".", a.NestedType.Attributes)...)
			continue
		}
		lines = append(lines, line+" "+a.Type.String())
	}
	slices.Sort(lines)
	return lines
}

// TestSchemasAreThoseOfThePublishedProvider compares with what configurations and states for siderolabs/talos rely on.
func TestSchemasAreThoseOfThePublishedProvider(t *testing.T) {
	client := func(flags string) []string {
		return []string{
			"client_configuration " + flags, "client_configuration.ca_certificate " + flags + " tftypes.String",
			"client_configuration.client_certificate " + flags + " tftypes.String", "client_configuration.client_key " + flags + " sensitive tftypes.String",
		}
	}
	kubernetes := []string{
		"kubernetes_client_configuration computed", "kubernetes_client_configuration.ca_certificate computed tftypes.String",
		"kubernetes_client_configuration.client_certificate computed tftypes.String", "kubernetes_client_configuration.client_key computed sensitive tftypes.String",
		"kubernetes_client_configuration.host computed tftypes.String",
	}
	machineSecrets := func(flags, optional string) (lines []string) {
		for _, object := range []string{"", ".cluster", ".secrets", ".trustdinfo", ".certs", ".certs.etcd", ".certs.k8s", ".certs.k8s_aggregator", ".certs.k8s_serviceaccount", ".certs.os"} {
			lines = append(lines, "machine_secrets"+object+" "+flags)
		}
		for _, plain := range []string{"cluster.id", "certs.etcd.cert", "certs.k8s.cert", "certs.k8s_aggregator.cert", "certs.os.cert"} {
			lines = append(lines, "machine_secrets."+plain+" "+flags+" tftypes.String")
		}
		for _, secret := range []string{"cluster.secret", "secrets.bootstrap_token", "secrets.secretbox_encryption_secret", "trustdinfo.token", "certs.etcd.key",
			"certs.k8s.key", "certs.k8s_aggregator.key", "certs.k8s_serviceaccount.key", "certs.os.key"} {
			lines = append(lines, "machine_secrets."+secret+" "+flags+" sensitive tftypes.String")
		}
		return append(lines, "machine_secrets.secrets.aescbc_encryption_secret "+optional+" sensitive tftypes.String")
	}
	timeouts := func(names ...string) (lines []string) {
		lines = append(lines, "timeouts optional")
		for _, n := range names {
			lines = append(lines, "timeouts."+n+" optional tftypes.String")
		}
		return lines
	}
	got := schemas(t)
	want := map[string][]string{
		"talos_machine_secrets": slices.Concat([]string{"id computed tftypes.String", "talos_version optional computed tftypes.String"},
			machineSecrets("computed", "computed"), client("computed")),
		"talos_machine_configuration_apply": slices.Concat([]string{
			"id computed tftypes.String", "apply_mode optional computed tftypes.String", "resolved_apply_mode computed tftypes.String",
			"node required tftypes.String", "endpoint optional computed tftypes.String", "machine_configuration_input required sensitive tftypes.String",
			"machine_configuration computed sensitive tftypes.String", "config_patches optional tftypes.List[tftypes.String]",
			"on_destroy optional", "on_destroy.reset optional computed tftypes.Bool", "on_destroy.graceful optional computed tftypes.Bool",
			"on_destroy.reboot optional computed tftypes.Bool",
		}, client("required"), timeouts("create", "update", "delete")),
		"talos_machine_bootstrap": slices.Concat([]string{
			"id computed tftypes.String", "node required tftypes.String", "endpoint optional computed tftypes.String",
		}, client("required"), timeouts("create")),
		"talos_cluster_kubeconfig": slices.Concat([]string{
			"id computed tftypes.String", "node required tftypes.String", "endpoint optional computed tftypes.String",
			"kubeconfig_raw computed sensitive tftypes.String", "certificate_renewal_duration optional computed tftypes.String",
		}, client("required"), kubernetes, timeouts("create", "update")),
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got.ResourceSchemas))); diff != "" {
		t.Error(diff)
	}
	for name, lines := range want {
		slices.Sort(lines)
		if diff := cmp.Diff(lines, shape("", got.ResourceSchemas[name].Block.Attributes)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got.ResourceSchemas[name].Version != 1 {
			t.Errorf("%s has schema version %d: states of the published provider have 1", name, got.ResourceSchemas[name].Version)
		}
	}
	wantData := map[string][]string{
		"talos_machine_configuration": slices.Concat([]string{
			"id computed tftypes.String", "cluster_name required tftypes.String", "cluster_endpoint required tftypes.String", "machine_type required tftypes.String",
			"config_patches optional tftypes.List[tftypes.String]", "kubernetes_version optional tftypes.String", "talos_version optional tftypes.String",
			"docs optional tftypes.Bool", "examples optional tftypes.Bool", "machine_configuration computed sensitive tftypes.String",
		}, machineSecrets("required", "optional")),
		"talos_client_configuration": slices.Concat([]string{
			"id computed tftypes.String", "cluster_name required tftypes.String", "endpoints optional tftypes.List[tftypes.String]",
			"nodes optional tftypes.List[tftypes.String]", "talos_config computed sensitive tftypes.String",
		}, client("required")),
		"talos_cluster_kubeconfig": slices.Concat([]string{
			"id computed tftypes.String", "node required tftypes.String", "endpoint optional computed tftypes.String",
			"kubeconfig_raw computed sensitive tftypes.String", "wait optional deprecated tftypes.Bool",
		}, client("required"), kubernetes, timeouts("read")),
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(wantData)), slices.Sorted(maps.Keys(got.DataSourceSchemas))); diff != "" {
		t.Error(diff)
	}
	for name, lines := range wantData {
		slices.Sort(lines)
		if diff := cmp.Diff(lines, shape("", got.DataSourceSchemas[name].Block.Attributes)); diff != "" {
			t.Errorf("data source %s: %s", name, diff)
		}
	}
}

func TestTheReferencePageNamesEveryAttribute(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/reference/terraform-provider-talos.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		sections[title] = body
	}
	check := func(title string, s *tfprotov6.Schema) {
		body, ok := sections[title]
		if !ok {
			t.Errorf("there is no section %q", title)
		}
		for _, a := range s.Block.Attributes {
			if !strings.Contains(body, "`"+a.Name+"`") {
				t.Errorf("%s: `%s` is not described", title, a.Name)
			}
		}
	}
	got := schemas(t)
	for name, s := range got.ResourceSchemas {
		check("Resource `"+name+"`", s)
	}
	for name, s := range got.DataSourceSchemas {
		check("Data source `"+name+"`", s)
	}
}
