package provider

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	datasource "github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/objectplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"

	"freehold.dev/freehold/internal/cloud/talos"
)

// leaf is one string of machine_secrets.
type leaf struct {
	description      string
	secret, optional bool
}

// machineSecretsShape is the attribute machine_secrets, the same as a resource's result and as a data source's argument:
// a leaf, or a map of more.
var machineSecretsShape = map[string]any{
	"cluster": map[string]any{
		"id":     leaf{description: "The cluster's id"},
		"secret": leaf{description: "The cluster's shared secret", secret: true},
	},
	"secrets": map[string]any{
		"bootstrap_token":             leaf{description: "The token that kubelets join with", secret: true},
		"secretbox_encryption_secret": leaf{description: "The key that Kubernetes secrets are encrypted with in etcd (Talos 1.3 and later)", secret: true},
		"aescbc_encryption_secret":    leaf{description: "The key that Kubernetes secrets are encrypted with in etcd (before Talos 1.3)", secret: true, optional: true},
	},
	"trustdinfo": map[string]any{
		"token": leaf{description: "The token that workers get their certificates with", secret: true},
	},
	"certs": map[string]any{
		"etcd":           certShape("etcd"),
		"k8s":            certShape("Kubernetes"),
		"k8s_aggregator": certShape("the Kubernetes aggregation layer"),
		"k8s_serviceaccount": map[string]any{
			"key": leaf{description: "PEM key that service account tokens are signed with, in base64", secret: true},
		},
		"os": certShape("the Talos API"),
	},
}

func certShape(what string) map[string]any {
	return map[string]any{
		"cert": leaf{description: "PEM certificate of the authority of " + what + ", in base64"},
		"key":  leaf{description: "PEM key of the authority of " + what + ", in base64", secret: true},
	}
}

func machineSecretsAttribute() schema.Attribute {
	a := resultAttribute(machineSecretsShape).(schema.SingleNestedAttribute)
	a.Description = "The cluster's root secrets"
	a.PlanModifiers = []planmodifier.Object{objectplanmodifier.UseStateForUnknown()}
	return a
}

func resultAttribute(shape any) schema.Attribute {
	if l, ok := shape.(leaf); ok {
		return schema.StringAttribute{Computed: true, Sensitive: l.secret, Description: l.description}
	}
	attributes := map[string]schema.Attribute{}
	for name, part := range shape.(map[string]any) {
		attributes[name] = resultAttribute(part)
	}
	return schema.SingleNestedAttribute{Computed: true, Attributes: attributes}
}

func machineSecretsArgument() datasource.Attribute {
	a := argumentAttribute(machineSecretsShape).(datasource.SingleNestedAttribute)
	a.Description = "The cluster's root secrets, as talos_machine_secrets gives them"
	return a
}

func argumentAttribute(shape any) datasource.Attribute {
	if l, ok := shape.(leaf); ok {
		return datasource.StringAttribute{Required: !l.optional, Optional: l.optional, Sensitive: l.secret, Description: l.description}
	}
	attributes := map[string]datasource.Attribute{}
	for name, part := range shape.(map[string]any) {
		attributes[name] = argumentAttribute(part)
	}
	return datasource.SingleNestedAttribute{Required: true, Attributes: attributes}
}

func objectType(shape map[string]any) map[string]attr.Type {
	out := map[string]attr.Type{}
	for name, part := range shape {
		if more, ok := part.(map[string]any); ok {
			out[name] = types.ObjectType{AttrTypes: objectType(more)}
		} else {
			out[name] = types.StringType
		}
	}
	return out
}

// The models of machine_secrets.
type (
	machineSecretsModel struct {
		Cluster    clusterModel        `tfsdk:"cluster"`
		Secrets    clusterSecretsModel `tfsdk:"secrets"`
		TrustdInfo trustdModel         `tfsdk:"trustdinfo"`
		Certs      certsModel          `tfsdk:"certs"`
	}
	clusterModel struct {
		ID     types.String `tfsdk:"id"`
		Secret types.String `tfsdk:"secret"`
	}
	clusterSecretsModel struct {
		BootstrapToken types.String `tfsdk:"bootstrap_token"`
		Secretbox      types.String `tfsdk:"secretbox_encryption_secret"`
		AESCBC         types.String `tfsdk:"aescbc_encryption_secret"`
	}
	trustdModel struct {
		Token types.String `tfsdk:"token"`
	}
	certsModel struct {
		Etcd              certModel `tfsdk:"etcd"`
		K8s               certModel `tfsdk:"k8s"`
		K8sAggregator     certModel `tfsdk:"k8s_aggregator"`
		K8sServiceAccount keyModel  `tfsdk:"k8s_serviceaccount"`
		OS                certModel `tfsdk:"os"`
	}
	certModel struct {
		Cert types.String `tfsdk:"cert"`
		Key  types.String `tfsdk:"key"`
	}
	keyModel struct {
		Key types.String `tfsdk:"key"`
	}
)

// readMachineSecrets decodes machine_secrets; what is wrong with them goes to diags, without the values.
func readMachineSecrets(ctx context.Context, object types.Object, diags *diag.Diagnostics) (*talos.Secrets, bool) {
	at := path.Root("machine_secrets")
	var text machineSecretsModel
	diags.Append(object.As(ctx, &text, basetypes.ObjectAsOptions{})...)
	if diags.HasError() {
		return nil, false
	}
	var m talos.MachineSecrets
	m.Cluster.ID, m.Cluster.Secret = text.Cluster.ID.ValueString(), text.Cluster.Secret.ValueString()
	m.Secrets.BootstrapToken = text.Secrets.BootstrapToken.ValueString()
	m.Secrets.SecretboxEncryptionSecret = text.Secrets.Secretbox.ValueString()
	m.Secrets.AESCBCEncryptionSecret = text.Secrets.AESCBC.ValueString()
	m.TrustdInfo.Token = text.TrustdInfo.Token.ValueString()
	decode := func(name string, from types.String, to *[]byte) {
		data, err := base64.StdEncoding.DecodeString(from.ValueString())
		if err != nil {
			diags.AddAttributeError(at, "Machine secrets not usable", fmt.Sprintf("certs.%s must be PEM in base64, as talos_machine_secrets gives it.", name))
		}
		*to = data
	}
	pair := func(name string, from certModel, to *talos.CertAndKey) {
		decode(name+".cert", from.Cert, &to.Cert)
		decode(name+".key", from.Key, &to.Key)
	}
	pair("etcd", text.Certs.Etcd, &m.Certs.Etcd)
	pair("k8s", text.Certs.K8s, &m.Certs.K8s)
	pair("k8s_aggregator", text.Certs.K8sAggregator, &m.Certs.K8sAggregator)
	pair("os", text.Certs.OS, &m.Certs.OS)
	decode("k8s_serviceaccount.key", text.Certs.K8sServiceAccount.Key, &m.Certs.K8sServiceAccount.Key)
	if diags.HasError() {
		return nil, false
	}
	s, err := m.ToSecrets()
	if err != nil {
		diags.AddAttributeError(at, "Machine secrets not usable", sentence(err))
		return nil, false
	}
	return s, true
}

// machineSecretsValue encodes machine_secrets.
func machineSecretsValue(m talos.MachineSecrets) types.Object {
	object := func(shape any, values map[string]attr.Value) attr.Value {
		return types.ObjectValueMust(objectType(shape.(map[string]any)), values)
	}
	certs := machineSecretsShape["certs"].(map[string]any)
	pair := func(name string, p talos.CertAndKey) attr.Value {
		return object(certs[name], map[string]attr.Value{"cert": encodeBase64(p.Cert), "key": encodeBase64(p.Key)})
	}
	aescbc := types.StringNull()
	if m.Secrets.AESCBCEncryptionSecret != "" {
		aescbc = types.StringValue(m.Secrets.AESCBCEncryptionSecret)
	}
	return types.ObjectValueMust(objectType(machineSecretsShape), map[string]attr.Value{
		"cluster": object(machineSecretsShape["cluster"], map[string]attr.Value{
			"id": types.StringValue(m.Cluster.ID), "secret": types.StringValue(m.Cluster.Secret),
		}),
		"secrets": object(machineSecretsShape["secrets"], map[string]attr.Value{
			"bootstrap_token":             types.StringValue(m.Secrets.BootstrapToken),
			"secretbox_encryption_secret": types.StringValue(m.Secrets.SecretboxEncryptionSecret),
			"aescbc_encryption_secret":    aescbc,
		}),
		"trustdinfo": object(machineSecretsShape["trustdinfo"], map[string]attr.Value{"token": types.StringValue(m.TrustdInfo.Token)}),
		"certs": object(certs, map[string]attr.Value{
			"etcd": pair("etcd", m.Certs.Etcd), "k8s": pair("k8s", m.Certs.K8s), "os": pair("os", m.Certs.OS),
			"k8s_aggregator":     pair("k8s_aggregator", m.Certs.K8sAggregator),
			"k8s_serviceaccount": object(certs["k8s_serviceaccount"], map[string]attr.Value{"key": encodeBase64(m.Certs.K8sServiceAccount.Key)}),
		}),
	})
}
