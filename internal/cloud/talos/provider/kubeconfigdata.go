package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/datasource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// kubeconfigData is the data source talos_cluster_kubeconfig. It signs a certificate each time it is read, which is every
// plan: the resource of the same name is the better choice.
type kubeconfigData struct{}

type kubeconfigDataModel struct {
	ID                  types.String   `tfsdk:"id"`
	Node                types.String   `tfsdk:"node"`
	Endpoint            types.String   `tfsdk:"endpoint"`
	ClientConfiguration types.Object   `tfsdk:"client_configuration"`
	Wait                types.Bool     `tfsdk:"wait"`
	Raw                 types.String   `tfsdk:"kubeconfig_raw"`
	Kubernetes          types.Object   `tfsdk:"kubernetes_client_configuration"`
	Timeouts            timeouts.Value `tfsdk:"timeouts"`
}

func (d *kubeconfigData) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_cluster_kubeconfig"
}

func (d *kubeconfigData) Schema(ctx context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		Description:        "Gets an administrator's kubeconfig from a control-plane machine, anew at every plan.",
		DeprecationMessage: "Use the resource talos_cluster_kubeconfig, which keeps what it got.",
		Attributes: map[string]schema.Attribute{
			"id":                   schema.StringAttribute{Computed: true, Description: "The cluster's name"},
			"node":                 schema.StringAttribute{Required: true, Description: "Address of a control-plane machine: host, or host:port"},
			"endpoint":             schema.StringAttribute{Optional: true, Computed: true, Description: "Where the machine's API is reached, when that is not at node"},
			"client_configuration": clientConfigurationDataArgument(),
			"wait":                 schema.BoolAttribute{Optional: true, DeprecationMessage: "It has no effect.", Description: "Accepted for compatibility, without effect"},
			"kubeconfig_raw":       schema.StringAttribute{Computed: true, Sensitive: true, Description: "The kubeconfig, YAML"},
			"kubernetes_client_configuration": schema.SingleNestedAttribute{
				Computed: true, Description: "The kubeconfig's parts, for other providers",
				Attributes: map[string]schema.Attribute{
					"host":               schema.StringAttribute{Computed: true, Description: kubeHostDescription},
					"ca_certificate":     schema.StringAttribute{Computed: true, Description: kubeCADescription},
					"client_certificate": schema.StringAttribute{Computed: true, Description: certDescription},
					"client_key":         schema.StringAttribute{Computed: true, Sensitive: true, Description: keyDescription},
				},
			},
			"timeouts": timeouts.Attributes(ctx),
		},
	}
}

func (d *kubeconfigData) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m kubeconfigDataModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if m.Endpoint.IsNull() {
		m.Endpoint = m.Node
	}
	limit, diags := m.Timeouts.Read(ctx, defaultTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	got, ok := fetchKubeconfig(ctx, m.Node, m.Endpoint, m.ClientConfiguration, limit, &resp.Diagnostics)
	if !ok {
		return
	}
	m.ID, m.Raw, m.Kubernetes = got.cluster, got.raw, got.parts
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
}
