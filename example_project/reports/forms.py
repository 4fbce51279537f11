from django import forms
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import UploadedFile

from .models import Upload

LARGEST = 10_000_000


class UploadForm(forms.ModelForm):
    class Meta:
        model = Upload
        fields = ["customer", "file"]

    def clean_file(self) -> UploadedFile:
        file: UploadedFile = self.cleaned_data["file"]
        if (file.size or 0) > LARGEST:
            raise ValidationError("A file may have 10 MB.")
        return file
