// Streams one answer through a gateway on this host, with OpenAI's Go SDK. An interrupt cancels the request: the gateway
// then closes its connections to the replicas.
//
// OPENAI_BASE_URL (such as http://127.0.0.1:8080/v1) and OPENAI_API_KEY are the SDK's own variables; OPENAI_MODEL is the
// model.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var response *http.Response
	client := openai.NewClient(option.WithMaxRetries(0)) // the gateway retries
	stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model:    os.Getenv("OPENAI_MODEL"),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Why is the slowest tenth of requests so slow?")},
	}, option.WithResponseInto(&response))
	defer stream.Close()
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			fmt.Print(choice.Delta.Content)
		}
	}
	if err := stream.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("\nreplica %s, %s\n", response.Header.Get("x-ttft-replica"), response.Header.Get("x-ttft-result"))
}
