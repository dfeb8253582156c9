// Package provider is an OpenTofu provider for Talos clusters: secrets, machine configurations, applying them,
// bootstrapping etcd. Names, arguments and attributes are those of the published provider siderolabs/talos (0.9 and
// 0.10), so that a configuration works with either.
package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
)

// Address is the provider's source address at OpenTofu's default registry.
const Address = "registry.opentofu.org/siderolabs/talos"

type talosProvider struct {
	version string
	failed  unconfigured
}

// New gives the constructor that plugin servers ask for. One provider serves any number of runs at once.
func New(version string) func() provider.Provider {
	return func() provider.Provider { return &talosProvider{version: version} }
}

func (p *talosProvider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName = "talos"
	resp.Version = p.version
}

func (p *talosProvider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	resp.Schema = schema.Schema{
		Description: "Makes Talos clusters: secrets, machine configurations, their delivery to machines, bootstrap.",
		Attributes: map[string]schema.Attribute{
			"image_factory_url": schema.StringAttribute{
				Optional:    true,
				Description: "Accepted for compatibility; nothing here asks an image factory.",
			},
		},
	}
}

func (p *talosProvider) Configure(context.Context, provider.ConfigureRequest, *provider.ConfigureResponse) {
}

func (p *talosProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{
		func() resource.Resource { return &secretsResource{} },
		func() resource.Resource { return &applyResource{failed: &p.failed} },
		func() resource.Resource { return &bootstrapResource{failed: &p.failed} },
		func() resource.Resource { return &kubeconfigResource{} },
	}
}

func (p *talosProvider) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{
		func() datasource.DataSource { return &configurationData{} },
		func() datasource.DataSource { return &clientConfigurationData{} },
		func() datasource.DataSource { return &kubeconfigData{} },
	}
}
