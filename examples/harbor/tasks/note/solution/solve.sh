#!/bin/bash
echo "See you at noon." > /app/note.txt
