package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"freehold.dev/freehold/internal/cloud/talos"
)

// clientConfigurationData is the data source talos_client_configuration.
type clientConfigurationData struct{}

type clientConfigurationModel struct {
	ID                  types.String `tfsdk:"id"`
	ClusterName         types.String `tfsdk:"cluster_name"`
	ClientConfiguration types.Object `tfsdk:"client_configuration"`
	Endpoints           types.List   `tfsdk:"endpoints"`
	Nodes               types.List   `tfsdk:"nodes"`
	TalosConfig         types.String `tfsdk:"talos_config"`
}

func (d *clientConfigurationData) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_client_configuration"
}

func (d *clientConfigurationData) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		Description: "Writes a talosconfig for an administrator of the cluster.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{Computed: true, Description: "The cluster's name"},
			"cluster_name": schema.StringAttribute{Required: true, Description: "Name of the cluster, and of the context",
				Validators: []validator.String{stringvalidator.LengthAtLeast(1)}},
			"client_configuration": clientConfigurationDataArgument(),
			"endpoints":            schema.ListAttribute{Optional: true, ElementType: types.StringType, Description: "Addresses of control-plane machines"},
			"nodes":                schema.ListAttribute{Optional: true, ElementType: types.StringType, Description: "Machines that commands go to by default"},
			"talos_config":         schema.StringAttribute{Computed: true, Sensitive: true, Description: "The talosconfig, YAML"},
		},
	}
}

func (d *clientConfigurationData) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m clientConfigurationModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	creds, ok := readCredentials(ctx, m.ClientConfiguration, &resp.Diagnostics)
	if !ok {
		return
	}
	endpoints, _ := stringList(m.Endpoints)
	nodes, _ := stringList(m.Nodes)
	text, err := talos.WriteTalosconfig(m.ClusterName.ValueString(), endpoints, nodes, creds.ca, creds.cert, creds.key)
	if err != nil {
		resp.Diagnostics.AddError("Talosconfig cannot be written", sentence(err))
		return
	}
	m.ID, m.TalosConfig = m.ClusterName, types.StringValue(string(text))
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
}
