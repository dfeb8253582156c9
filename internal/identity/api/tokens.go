package api

import (
	"context"
	"net/http"
	"strings"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/wire"
)

type (
	tokenPath struct {
		User string `path:"name" doc:"The user's name."`
		ID   string `path:"id" doc:"The token's name."`
	}
	tokenBody    struct{ Body client.APIToken }
	createdToken struct {
		Location string `header:"Location"`
		Body     client.CreatedToken
	}
	tokenList struct{ Body client.List[client.APIToken] }
)

func (a *API) registerTokens(api *rest.API) {
	op := func(method, path, id, summary string, status int) rest.Operation {
		return rest.Operation{Method: method, Path: "/api/v1/users/{name}/tokens" + path, ID: id, Summary: summary, Status: status, Access: rest.Admin, Tags: []string{"Users"}}
	}
	rest.Register(api, op(http.MethodGet, "", "list-tokens", "List a user's API tokens", 0), a.listTokens)
	rest.Register(api, op(http.MethodPost, "", "create-token", "Create an API token; its text is answered once", http.StatusCreated), a.createToken)
	rest.Register(api, op(http.MethodGet, "/{id}", "get-token", "Get an API token", 0), a.getToken)
	rest.Register(api, op(http.MethodDelete, "/{id}", "revoke-token", "Revoke an API token", 0), a.revokeToken)
}

func (a *API) listTokens(ctx context.Context, in *struct {
	UserPath
	rest.ListInput
}) (*tokenList, error) {
	selector, err := in.Selector()
	if err != nil {
		return nil, err
	}
	page, err := a.service.Tokens(ctx, in.Name, store.Query{Selector: selector, Offset: in.Offset, Limit: in.Limit})
	if err != nil {
		return nil, mapped(err)
	}
	return &tokenList{list(page, wireToken)}, nil
}

func (a *API) createToken(ctx context.Context, in *struct {
	UserPath
	Body client.APIToken
}) (*createdToken, error) {
	if err := invalid(metadataCauses(&in.Body.Metadata, "")); err != nil {
		return nil, err
	}
	input := identity.TokenInput{
		User: in.Name, Name: in.Body.Metadata.Name, Labels: in.Body.Metadata.Labels, Annotations: in.Body.Metadata.Annotations,
	}
	if at := in.Body.Spec.ExpiresAt; at != nil {
		input.ExpiresAt = utc(*at)
		if input.ExpiresAt.IsZero() {
			return nil, invalid([]rest.Cause{{Field: "spec.expiresAt", Message: "must lie in the future"}})
		}
	}
	t, text, err := a.service.CreateToken(ctx, input)
	if err != nil {
		return nil, mapped(err)
	}
	w := wireToken(t)
	return &createdToken{
		Location: "/api/v1/users/" + in.Name + "/tokens/" + w.Metadata.Name,
		Body:     client.CreatedToken{Metadata: w.Metadata, Spec: w.Spec, Status: w.Status, Token: text},
	}, nil
}

func (a *API) getToken(ctx context.Context, in *tokenPath) (*tokenBody, error) {
	t, err := a.service.Token(ctx, in.User, in.ID)
	if err != nil {
		return nil, mapped(err)
	}
	return &tokenBody{wireToken(t)}, nil
}

func (a *API) revokeToken(ctx context.Context, in *tokenPath) (*tokenBody, error) {
	t, err := a.service.RevokeToken(ctx, in.User, in.ID)
	if err != nil {
		return nil, mapped(err)
	}
	return &tokenBody{wireToken(t)}, nil
}

// wireToken leaves the hash of the token's id behind.
func wireToken(t *identity.Token) client.APIToken {
	_, name, _ := strings.Cut(t.Name, "/")
	expires := t.Spec.ExpiresAt
	return client.APIToken{
		Metadata: wire.Metadata(&t.Metadata, name),
		Spec:     client.APITokenSpec{ExpiresAt: &expires},
		Status:   client.APITokenStatus{LastUsed: t.Status.LastUsed},
	}
}
