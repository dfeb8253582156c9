package provider

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	datasource "github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	resource "github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-framework/types/basetypes"
)

const (
	caDescription   = "PEM certificate of the authority that the machines' Talos API is verified with, in base64"
	certDescription = "PEM client certificate, in base64"
	keyDescription  = "PEM key of the client certificate, in base64"
)

// clientConfiguration is the nested attribute client_configuration.
type clientConfiguration struct {
	CA   types.String `tfsdk:"ca_certificate"`
	Cert types.String `tfsdk:"client_certificate"`
	Key  types.String `tfsdk:"client_key"`
}

var clientConfigurationTypes = map[string]attr.Type{
	"ca_certificate":     types.StringType,
	"client_certificate": types.StringType,
	"client_key":         types.StringType,
}

func clientConfigurationArgument() resource.SingleNestedAttribute {
	return resource.SingleNestedAttribute{
		Required:    true,
		Description: "Credentials for the machines' Talos API, as talos_machine_secrets gives them",
		Attributes: map[string]resource.Attribute{
			"ca_certificate":     resource.StringAttribute{Required: true, Description: caDescription},
			"client_certificate": resource.StringAttribute{Required: true, Description: certDescription},
			"client_key":         resource.StringAttribute{Required: true, Sensitive: true, Description: keyDescription},
		},
	}
}

func clientConfigurationDataArgument() datasource.SingleNestedAttribute {
	return datasource.SingleNestedAttribute{
		Required:    true,
		Description: "Credentials for the machines' Talos API, as talos_machine_secrets gives them",
		Attributes: map[string]datasource.Attribute{
			"ca_certificate":     datasource.StringAttribute{Required: true, Description: caDescription},
			"client_certificate": datasource.StringAttribute{Required: true, Description: certDescription},
			"client_key":         datasource.StringAttribute{Required: true, Sensitive: true, Description: keyDescription},
		},
	}
}

// credentials are PEM.
type credentials struct {
	ca, cert, key []byte
}

// readCredentials decodes client_configuration; what is wrong with it goes to diags, without the values.
func readCredentials(ctx context.Context, object types.Object, diags *diag.Diagnostics) (c credentials, ok bool) {
	at := path.Root("client_configuration")
	if object.IsNull() || object.IsUnknown() {
		diags.AddAttributeError(at, "Client configuration missing",
			"The credentials for the Talos API are not known. Set client_configuration to talos_machine_secrets.<name>.client_configuration.")
		return credentials{}, false
	}
	var text clientConfiguration
	diags.Append(object.As(ctx, &text, basetypes.ObjectAsOptions{})...)
	if diags.HasError() {
		return credentials{}, false
	}
	for _, part := range []struct {
		name string
		from types.String
		to   *[]byte
	}{{"ca_certificate", text.CA, &c.ca}, {"client_certificate", text.Cert, &c.cert}, {"client_key", text.Key, &c.key}} {
		pem, err := base64.StdEncoding.DecodeString(part.from.ValueString())
		if err != nil || len(pem) == 0 {
			diags.AddAttributeError(at.AtName(part.name), "Client configuration not readable",
				fmt.Sprintf("%s must be PEM in base64, as talos_machine_secrets gives it.", part.name))
			continue
		}
		*part.to = pem
	}
	return c, !diags.HasError()
}

func encodeBase64(b []byte) types.String {
	return types.StringValue(base64.StdEncoding.EncodeToString(b))
}

// stringList reads a list of strings; null elements are left out.
func stringList(list types.List) (values []string, known bool) {
	if list.IsUnknown() {
		return nil, false
	}
	for _, element := range list.Elements() {
		s, ok := element.(types.String)
		if !ok || s.IsUnknown() {
			return nil, false
		}
		if !s.IsNull() {
			values = append(values, s.ValueString())
		}
	}
	return values, true
}
