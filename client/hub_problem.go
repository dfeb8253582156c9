package client

// HubProblem is the envelope of every refusal of the Hub's operator API and of the agent API.
type HubProblem struct {
	Code          string `json:"code" doc:"What is wrong, for programs."`
	Message       string `json:"message" doc:"What is wrong, for people."`
	CorrelationID string `json:"correlation_id" doc:"That of the X-Correlation-ID header; it finds the request in the server's log and audit."`
	Details       any    `json:"details,omitempty" doc:"What belongs to the code: fields (of bad_request, validation_failed), lints, the generations of generation_conflict."`
}

// HubFaults are the details of bad_request and validation_failed: every fault with its field.
type HubFaults struct {
	Fields []Cause `json:"fields"`
}
