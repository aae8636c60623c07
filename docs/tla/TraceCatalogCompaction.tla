------------------- MODULE TraceCatalogCompaction -------------------
(* Checks one trace of the simulation: every step must be one of the  *)
(* specification's, and every state safe. A step that is not possible *)
(* leaves TLC without a next state, which it reports as a deadlock.   *)
EXTENDS CatalogCompaction, Traces
VARIABLE at
TraceReplicas == 1..Len(Owners)
TracePartitions == 1..Len(FirstTables)
TraceInit == at = 1 /\ InitWith(Owners, First)
Take(s) ==
    \/ s[1] = "NewVersion" /\ NewVersion
    \/ s[1] = "Join" /\ Join(s[2])
    \/ s[1] = "Crash" /\ Crash(s[2])
    \/ s[1] = "Begin" /\ Begin(s[2], s[3])
    \/ s[1] = "End" /\ End(s[2], s[3])
    \/ s[1] = "Write" /\ Write(s[2], s[3])
    \/ s[1] = "MoveWatermark" /\ MoveWatermark(s[2], s[3])
    \/ s[1] = "Flush" /\ Flush(s[2], s[3])
    \/ s[1] = "Move" /\ Move(s[2], s[3])
    \/ s[1] = "StartRound" /\ StartRound(s[2])
    \/ s[1] = "Report" /\ Report(s[2], s[3], s[4], s[5])
    \/ s[1] = "Confirm" /\ Confirm(s[2])
    \/ s[1] = "AppendTime" /\ AppendTime(s[2], s[3])
    \/ s[1] = "Cut" /\ Cut(s[2], s[3])
TraceNext ==
    \/ at <= Len(Steps) /\ Take(Steps[at]) /\ at' = at + 1
    \/ at > Len(Steps) /\ UNCHANGED <<vars, at>>
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, at>>
=====================================================================
