package api

import (
	"context"
	"net/http"

	"freehold.dev/freehold/client"
	"freehold.dev/freehold/internal/identity"
	"freehold.dev/freehold/internal/kernel/rest"
	"freehold.dev/freehold/internal/kernel/store"
	"freehold.dev/freehold/internal/wire"
)

type (
	userBody struct{ Body client.User }
	// UserPath is embedded in inputs: it must be exported to be seen there.
	UserPath struct {
		Name string `path:"name" doc:"The user's name."`
	}
	createdUser struct {
		Location string `header:"Location"`
		Body     client.User
	}
	userList struct{ Body client.List[client.User] }
)

func (a *API) registerUsers(api *rest.API) {
	op := func(method, path, id, summary string, status int) rest.Operation {
		return rest.Operation{Method: method, Path: path, ID: id, Summary: summary, Status: status, Access: rest.Admin, Tags: []string{"Users"}}
	}
	rest.Register(api, op(http.MethodGet, "/api/v1/users", "list-users", "List users", 0), a.listUsers)
	rest.Register(api, op(http.MethodPost, "/api/v1/users", "create-user", "Create a user", http.StatusCreated), a.createUser)
	rest.Register(api, op(http.MethodGet, "/api/v1/users/{name}", "get-user", "Get a user", 0), a.getUser)
	rest.Register(api, op(http.MethodPut, "/api/v1/users/{name}", "update-user", "Change a user's role, password, labels and annotations", 0), a.updateUser)
	rest.Register(api, op(http.MethodDelete, "/api/v1/users/{name}", "delete-user", "Delete a user with its sessions and API tokens", 0), a.deleteUser)
}

func (a *API) listUsers(ctx context.Context, in *rest.ListInput) (*userList, error) {
	selector, err := in.Selector()
	if err != nil {
		return nil, err
	}
	page, err := a.service.Users(ctx, store.Query{Selector: selector, Offset: in.Offset, Limit: in.Limit})
	if err != nil {
		return nil, mapped(err)
	}
	return &userList{list(page, wireUser)}, nil
}

func (a *API) createUser(ctx context.Context, in *userBody) (*createdUser, error) {
	if err := invalid(metadataCauses(&in.Body.Metadata, "")); err != nil {
		return nil, err
	}
	u, err := a.service.CreateUser(ctx, userInput(&in.Body, in.Body.Metadata.Name))
	if err != nil {
		return nil, mapped(err)
	}
	return &createdUser{Location: "/api/v1/users/" + u.Name, Body: wireUser(u)}, nil
}

func (a *API) getUser(ctx context.Context, in *UserPath) (*userBody, error) {
	u, err := a.service.User(ctx, in.Name)
	if err != nil {
		return nil, mapped(err)
	}
	return &userBody{wireUser(u)}, nil
}

func (a *API) updateUser(ctx context.Context, in *struct {
	UserPath
	Body client.User
}) (*userBody, error) {
	causes := metadataCauses(&in.Body.Metadata, in.Name)
	if in.Body.Metadata.ResourceVersion == 0 {
		causes = append(causes, rest.Cause{Field: "metadata.resourceVersion", Message: "is missing: send the one that was read"})
	}
	if err := invalid(causes); err != nil {
		return nil, err
	}
	u, err := a.service.UpdateUser(ctx, userInput(&in.Body, in.Name))
	if err != nil {
		return nil, mapped(err)
	}
	return &userBody{wireUser(u)}, nil
}

func (a *API) deleteUser(ctx context.Context, in *UserPath) (*userBody, error) {
	u, err := a.service.DeleteUser(ctx, in.Name)
	if err != nil {
		return nil, mapped(err)
	}
	return &userBody{wireUser(u)}, nil
}

func userInput(u *client.User, name string) identity.UserInput {
	return identity.UserInput{
		Name: name, UID: u.Metadata.UID, Revision: u.Metadata.ResourceVersion, Labels: u.Metadata.Labels, Annotations: u.Metadata.Annotations,
		Role: identity.Role(u.Spec.Role), Password: u.Spec.Password, PasswordHash: u.Spec.PasswordHash,
	}
}

// wireUser leaves the password's hash behind.
func wireUser(u *identity.User) client.User {
	return client.User{
		Metadata: wire.Metadata(&u.Metadata, u.Name),
		Spec:     client.UserSpec{Role: string(u.Spec.Role)},
		Status:   client.UserStatus{LastLogin: u.Status.LastLogin, ActiveTokens: u.Status.ActiveTokens},
	}
}
