package provider

import (
	"cmp"
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/siderolabs/talos/pkg/machinery/gendata"

	"freehold.dev/freehold/internal/cloud"
	"freehold.dev/freehold/internal/cloud/talos"
)

// configurationData is the data source talos_machine_configuration.
type configurationData struct{}

var _ datasource.DataSourceWithValidateConfig = (*configurationData)(nil)

type configurationModel struct {
	ID                   types.String `tfsdk:"id"`
	ClusterName          types.String `tfsdk:"cluster_name"`
	ClusterEndpoint      types.String `tfsdk:"cluster_endpoint"`
	MachineSecrets       types.Object `tfsdk:"machine_secrets"`
	MachineType          types.String `tfsdk:"machine_type"`
	ConfigPatches        types.List   `tfsdk:"config_patches"`
	KubernetesVersion    types.String `tfsdk:"kubernetes_version"`
	TalosVersion         types.String `tfsdk:"talos_version"`
	Docs                 types.Bool   `tfsdk:"docs"`
	Examples             types.Bool   `tfsdk:"examples"`
	MachineConfiguration types.String `tfsdk:"machine_configuration"`
}

func (d *configurationData) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_machine_configuration"
}

func (d *configurationData) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		Description: "Generates the configuration of a control-plane or worker machine.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{Computed: true, Description: "The cluster's name"},
			"cluster_name": schema.StringAttribute{Required: true, Description: "Name of the cluster",
				Validators: []validator.String{stringvalidator.LengthAtLeast(1)}},
			"cluster_endpoint": schema.StringAttribute{Required: true, Description: "Where the Kubernetes API is reached: an https URL of host and port"},
			"machine_secrets":  machineSecretsArgument(),
			"machine_type": schema.StringAttribute{Required: true, Description: "controlplane or worker",
				Validators: []validator.String{stringvalidator.OneOf(string(cloud.RoleControlPlane), string(cloud.RoleWorker))}},
			"config_patches": schema.ListAttribute{Optional: true, ElementType: types.StringType,
				Description: "Patches in order: partial documents (strategic merge) or JSON6902 operations, YAML or JSON"},
			"kubernetes_version": schema.StringAttribute{Optional: true, Description: "Kubernetes version. Default: " + talos.DefaultKubernetesVersion},
			"talos_version": schema.StringAttribute{Optional: true, Validators: []validator.String{talosVersionKnown{}},
				Description: "The Talos version whose features are used, such as v1.12 or 1.12.6; a full version also picks the installer. Default: the newest that is known"},
			"docs":                  schema.BoolAttribute{Optional: true, Description: "Explain the fields in comments. Default false"},
			"examples":              schema.BoolAttribute{Optional: true, Description: "Give examples in comments. Default false"},
			"machine_configuration": schema.StringAttribute{Computed: true, Sensitive: true, Description: "The configuration: YAML documents, secrets included"},
		},
	}
}

func (d *configurationData) ValidateConfig(ctx context.Context, req datasource.ValidateConfigRequest, resp *datasource.ValidateConfigResponse) {
	var m configurationModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if known(m.ClusterEndpoint) {
		if err := talos.CheckEndpoint(m.ClusterEndpoint.ValueString()); err != nil {
			resp.Diagnostics.AddAttributeError(path.Root("cluster_endpoint"), "Endpoint not usable", sentence(err))
		}
	}
	checkPatches(m.ConfigPatches, &resp.Diagnostics)
	if !known(m.KubernetesVersion) {
		return
	}
	at := path.Root("kubernetes_version")
	version := strings.TrimPrefix(m.KubernetesVersion.ValueString(), "v")
	if err := talos.CheckKubernetesVersion(version); err != nil {
		resp.Diagnostics.AddAttributeError(at, "Kubernetes version not usable", sentence(err))
		return
	}
	if m.TalosVersion.IsUnknown() || resp.Diagnostics.HasError() {
		return
	}
	if err := talos.CheckSupported(cmp.Or(m.TalosVersion.ValueString(), gendata.VersionTag), version); err != nil {
		resp.Diagnostics.AddAttributeError(at, "Versions do not fit together", sentence(err))
	}
}

func (d *configurationData) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m configurationModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	s, ok := readMachineSecrets(ctx, m.MachineSecrets, &resp.Diagnostics)
	if !ok {
		return
	}
	patches, _ := stringList(m.ConfigPatches)
	text, err := talos.Generate(talos.ConfigInput{
		Cluster:           m.ClusterName.ValueString(),
		Endpoint:          m.ClusterEndpoint.ValueString(),
		Role:              cloud.Role(m.MachineType.ValueString()),
		TalosVersion:      m.TalosVersion.ValueString(),
		KubernetesVersion: strings.TrimPrefix(m.KubernetesVersion.ValueString(), "v"),
		Patches:           patches,
		Docs:              m.Docs.ValueBool(),
		Examples:          m.Examples.ValueBool(),
	}, s)
	if err != nil {
		addConfigError(&resp.Diagnostics, err)
		return
	}
	m.ID = m.ClusterName
	m.MachineConfiguration = types.StringValue(string(text))
	// Defaults are shown where nothing was asked for.
	m.KubernetesVersion = types.StringValue(cmp.Or(m.KubernetesVersion.ValueString(), talos.DefaultKubernetesVersion))
	m.TalosVersion = types.StringValue(cmp.Or(m.TalosVersion.ValueString(), talos.DefaultTalosVersion))
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
}
