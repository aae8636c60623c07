#!/usr/bin/env escript
%% SPDX-License-Identifier: Apache-2.0
%% Appends to segment files of Ra, the Raft library of RabbitMQ, with a sync after so many entries each.
%%
%%     escript benchmarks/ra_segment.escript PLUGINS FOLDER ENTRIES EACH
%%
%% PLUGINS has the folders of Ra and of what it needs, as RabbitMQ is installed; FOLDER is made, and gets the segments.
%% Prints JSON after a warm-up: entries a second, and microseconds of CPU an entry of all threads of this process.
%% A segment takes 4,096 entries, Ra's default and ours. Ra writes the payloads, then the records, and calls fsync.

-mode(compile).

-define(PAYLOAD_BYTES, 256).
-define(MAX_COUNT, 4096).
-define(WARM_UP_SYNCS, 64).

main([Plugins, Folder, EntriesText, EachText]) ->
    ok = code:add_pathsa(filelib:wildcard(filename:join(Plugins, "*/ebin"))),
    {ok, _} = application:ensure_all_started(ra),
    Entries = list_to_integer(EntriesText),
    Payloads = payloads(list_to_integer(EachText)),
    ok = filelib:ensure_dir(Folder ++ "/segment"),
    _ = measured(Folder ++ "/warm-up-", min(Entries, ?WARM_UP_SYNCS * length(Payloads)), Payloads),
    {Seconds, Cpu} = measured(Folder ++ "/", Entries, Payloads),
    io:format("{\"rate\": ~.3f, \"cpu\": ~.3f}~n", [Entries / Seconds, Cpu / Entries * 1.0e6]).

payloads(Count) ->
    Noise = rand:bytes(?PAYLOAD_BYTES + Count),
    [binary:part(Noise, Start, ?PAYLOAD_BYTES) || Start <- lists:seq(0, Count - 1)].

measured(Prefix, Entries, Payloads) ->
    Cpu = cpu_seconds(),
    Began = erlang:monotonic_time(),
    Segment = batches(1, Entries, Payloads, begun(Prefix, 1), Prefix),
    Took = erlang:convert_time_unit(erlang:monotonic_time() - Began, native, nanosecond),
    Spent = cpu_seconds() - Cpu,
    ok = ra_log_segment:close(Segment),
    {Took / 1.0e9, Spent}.

begun(Prefix, First) ->
    Path = Prefix ++ integer_to_list(First) ++ ".segment",
    {ok, Segment} = ra_log_segment:open(Path, #{max_count => ?MAX_COUNT}),
    Segment.

batches(First, Last, _, Segment, _) when First > Last ->
    Segment;
batches(First, Last, Payloads, Segment, Prefix) ->
    {Next, Filled} = appended(First, Payloads, Segment, Prefix),
    {ok, Synced} = ra_log_segment:sync(Filled),
    batches(Next, Last, Payloads, Synced, Prefix).

appended(Index, [], Segment, _) ->
    {Index, Segment};
appended(Index, [Payload | More] = Payloads, Segment, Prefix) ->
    case ra_log_segment:append(Segment, Index, 1, Payload) of
        {ok, Longer} ->
            appended(Index + 1, More, Longer, Prefix);
        {error, full} ->
            {ok, Synced} = ra_log_segment:sync(Segment),
            ok = ra_log_segment:close(Synced),
            appended(Index, Payloads, begun(Prefix, Index), Prefix)
    end.

%% In user and in system, to a hundredth.
cpu_seconds() ->
    {ok, Line} = file:read_file("/proc/self/stat"),
    [_, Fields] = binary:split(Line, <<") ">>),
    Words = binary:split(Fields, <<" ">>, [global]),
    (binary_to_integer(lists:nth(12, Words)) + binary_to_integer(lists:nth(13, Words))) / 100.
